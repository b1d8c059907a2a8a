//! The signature container (RFC 5652): a ContentInfo with SignedData, its content embedded.
//!
//! ```text
//! ContentInfo = { signedData, [0] { version, digest algorithms, { content type, [0] content },
//!                                   [0] certificates, [1] revocation lists, signer infos } }
//! SignerInfo  = { version, issuer and serial | [0] key id, digest algorithm,
//!                 [0] signed attributes, signature algorithm, signature, [1] other attributes }
//! ```
//!
//! Pure DER: what `openssl cms -stream` makes has indefinite lengths and is refused. Revocation
//! lists and unsigned attributes are passed over.

use der::asn1::ObjectIdentifier;
use der::Tag;

use super::asn1::{context, context_primitive, oid, Value};
use super::key::{sequence, Algorithm, Hash};
use super::x509::Certificate;
use super::Reason;

const SIGNED_DATA: ObjectIdentifier = oid("1.2.840.113549.1.7.2");
const DATA: ObjectIdentifier = oid("1.2.840.113549.1.7.1");
const CONTENT_TYPE: ObjectIdentifier = oid("1.2.840.113549.1.9.3");
const MESSAGE_DIGEST: ObjectIdentifier = oid("1.2.840.113549.1.9.4");

/// Most certificates, signers, attributes and algorithms of one signature.
const MAX_VALUES: usize = 16;

const WHAT: &str = "the signature";

/// What was signed, by whom, and the certificates that come along.
#[derive(Debug)]
pub(super) struct Signed<'a> {
    /// The signed bytes.
    pub(super) content: &'a [u8],
    content_type: Value<'a>,
    digests: Vec<Value<'a>>,
    /// Those that can be read.
    pub(super) certificates: Vec<Certificate<'a>>,
    pub(super) signers: Vec<Signer<'a>>,
}

/// One signer.
#[derive(Debug)]
pub(super) struct Signer<'a> {
    id: Id<'a>,
    digest: Value<'a>,
    attributes: Option<Value<'a>>,
    algorithm: Value<'a>,
    signature: &'a [u8],
}

#[derive(Debug)]
enum Id<'a> {
    Serial { issuer: &'a [u8], serial: &'a [u8] },
    Key(&'a [u8]),
}

/// Parses one CMS signature.
pub(super) fn parse(bytes: &[u8]) -> Result<Signed<'_>, Reason> {
    let mut fields = sequence(Value::whole(bytes, WHAT)?, WHAT)?;
    if !fields.take(Tag::ObjectIdentifier)?.is(SIGNED_DATA) {
        return Err("it is no CMS SignedData".to_owned());
    }
    let inner = Value::whole(fields.take(context(0))?.contents, WHAT)?;
    fields.end()?;

    let mut fields = sequence(inner, WHAT)?;
    fields.take(Tag::Integer)?;
    let digests = fields.take(Tag::Set)?.fields(WHAT)?;
    let content = fields.take(Tag::Sequence)?;
    let certificates = fields.optional(context(0))?;
    fields.optional(context(1))?;
    let signers = fields.take(Tag::Set)?.fields(WHAT)?;
    fields.end()?;

    let mut parts = content.fields(WHAT)?;
    let content_type = parts.take(Tag::ObjectIdentifier)?;
    let content = parts.optional(context(0))?;
    parts.end()?;
    let content = content.ok_or("what was signed is not embedded in it")?;
    let content = Value::whole(content.contents, WHAT)?.expect(Tag::OctetString, WHAT)?;

    let signers = signers.all(Tag::Sequence, MAX_VALUES)?;
    Ok(Signed {
        content: content.contents,
        content_type,
        digests: digests.all(Tag::Sequence, MAX_VALUES)?,
        certificates: match certificates {
            Some(certificates) => parse_certificates(certificates)?,
            None => Vec::new(),
        },
        signers: signers
            .into_iter()
            .map(parse_signer)
            .collect::<Result<_, _>>()?,
    })
}

fn parse_certificates(certificates: Value<'_>) -> Result<Vec<Certificate<'_>>, Reason> {
    let mut fields = certificates.fields(WHAT)?;
    let mut parsed = Vec::new();
    let mut count = 0;
    while let Some(value) = fields.next()? {
        count += 1;
        if count > MAX_VALUES {
            return Err("there are too many certificates in it".to_owned());
        }
        // Others are attribute certificates and the like. One that cannot be read is not needed,
        // or will be missed.
        if value.tag == Tag::Sequence {
            match Certificate::parse(value.raw) {
                Ok(certificate) => parsed.push(certificate),
                Err(reason) => log::debug!("an embedded certificate is passed over: {reason}"),
            }
        }
    }
    Ok(parsed)
}

fn parse_signer(signer: Value<'_>) -> Result<Signer<'_>, Reason> {
    let mut fields = signer.fields(WHAT)?;
    fields.take(Tag::Integer)?;
    let id = match fields.optional(context_primitive(0))? {
        Some(key) => Id::Key(key.contents),
        None => {
            let mut id = fields.take(Tag::Sequence)?.fields(WHAT)?;
            let (issuer, serial) = (id.take(Tag::Sequence)?, id.take(Tag::Integer)?);
            id.end()?;
            Id::Serial {
                issuer: issuer.raw,
                serial: serial.raw,
            }
        }
    };
    let digest = fields.take(Tag::Sequence)?;
    let attributes = fields.optional(context(0))?;
    let algorithm = fields.take(Tag::Sequence)?;
    let signature = fields.take(Tag::OctetString)?.contents;
    fields.optional(context(1))?;
    fields.end()?;
    Ok(Signer {
        id,
        digest,
        attributes,
        algorithm,
        signature,
    })
}

impl<'a> Signed<'a> {
    /// The certificates that this signer may mean.
    pub(super) fn certificates_of<'s>(
        &'s self,
        signer: &'s Signer<'a>,
    ) -> impl Iterator<Item = &'s Certificate<'a>> {
        self.certificates
            .iter()
            .filter(|certificate| match signer.id {
                Id::Serial { issuer, serial } => {
                    certificate.issuer.raw == issuer && certificate.serial.raw == serial
                }
                Id::Key(id) => certificate.key_id == Some(id),
            })
    }

    /// Whether the key of `certificate` signed the content as `signer` says.
    pub(super) fn verify(
        &self,
        signer: &Signer<'_>,
        certificate: &Certificate<'_>,
    ) -> Result<(), Reason> {
        let hash = Hash::parse(&signer.digest)?;
        let announced = |value: &Value<'_>| Hash::parse(value).is_ok_and(|named| named == hash);
        if !self.digests.iter().any(announced) {
            return Err("its signer uses a digest algorithm that it does not announce".to_owned());
        }
        let algorithm = signer.algorithm()?;
        let Some(attributes) = signer.attributes else {
            if !self.content_type.is(DATA) {
                return Err("it has no signed attributes, and they are needed here".to_owned());
            }
            if algorithm == Algorithm::Ed25519 {
                return algorithm.verify(&certificate.key, self.content, signer.signature);
            }
            let algorithm = algorithm.with(hash)?;
            return algorithm.verify(&certificate.key, self.content, signer.signature);
        };
        let content_type = attribute(attributes, CONTENT_TYPE)?;
        if content_type.raw != self.content_type.raw {
            return Err("its signed content type is another one".to_owned());
        }
        let digest = attribute(attributes, MESSAGE_DIGEST)?;
        if digest.tag != Tag::OctetString || digest.contents != hash.digest(self.content) {
            return Err("what was signed is not what is embedded".to_owned());
        }
        // They are signed as the SET that they are, not with the tag that they have here.
        let mut message = attributes.raw.to_vec();
        if let Some(tag) = message.first_mut() {
            *tag = 0x31;
        }
        let algorithm = algorithm.with(hash)?;
        algorithm.verify(&certificate.key, &message, signer.signature)
    }
}

impl Signer<'_> {
    fn algorithm(&self) -> Result<Algorithm, Reason> {
        Algorithm::parse(&self.algorithm)
    }

    /// Its algorithms, for people.
    pub(super) fn algorithm_name(&self) -> Result<String, Reason> {
        let (algorithm, hash) = (self.algorithm()?, Hash::parse(&self.digest)?);
        Ok(algorithm.with(hash)?.name())
    }
}

/// The one value of an attribute that must be there exactly once.
fn attribute(attributes: Value<'_>, name: ObjectIdentifier) -> Result<Value<'_>, Reason> {
    let all = attributes.fields(WHAT)?.all(Tag::Sequence, MAX_VALUES)?;
    let mut found = None;
    for attribute in all {
        let mut fields = attribute.fields(WHAT)?;
        let kind = fields.take(Tag::ObjectIdentifier)?;
        let values = fields.take(Tag::Set)?;
        fields.end()?;
        if kind.is(name)
            && found
                .replace(Value::whole(values.contents, WHAT)?)
                .is_some()
        {
            return Err("it has a signed attribute twice".to_owned());
        }
    }
    found.ok_or_else(|| "it lacks a signed attribute".to_owned())
}
