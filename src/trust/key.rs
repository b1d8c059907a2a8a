//! One signature under one key: the algorithms that are accepted, and nothing else.
//!
//! | key | signature algorithm | digest |
//! |---|---|---|
//! | RSA, 2048 to 8192 bits | `sha256/384/512WithRSAEncryption`; in CMS also plain `rsaEncryption`, which OpenSSL writes | SHA-256, 384, 512 |
//! | RSA | RSASSA-PSS with MGF1 of the same digest, salt as long as it, trailer 1 | SHA-256, 384, 512 |
//! | P-256, P-384 | `ecdsa-with-SHA256/384/512`, any with either curve | SHA-256, 384, 512 |
//! | Ed25519 | `Ed25519` | in CMS, of the attributes alone |
//!
//! SHA-1, MD5, DSA, other curves and shorter keys are refused.

use der::asn1::ObjectIdentifier;
use der::Tag;
use p256::ecdsa::signature::hazmat::PrehashVerifier;
use ring::digest::{digest, SHA256, SHA384, SHA512};
use ring::signature::{
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512,
    RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512,
};

use super::asn1::{malformed, oid, Fields, Value};
use super::Reason;

const RSA: ObjectIdentifier = oid("1.2.840.113549.1.1.1");
const RSA_PSS: ObjectIdentifier = oid("1.2.840.113549.1.1.10");
const MGF1: ObjectIdentifier = oid("1.2.840.113549.1.1.8");
const RSA_WITH: [(ObjectIdentifier, Hash); 3] = [
    (oid("1.2.840.113549.1.1.11"), Hash::Sha256),
    (oid("1.2.840.113549.1.1.12"), Hash::Sha384),
    (oid("1.2.840.113549.1.1.13"), Hash::Sha512),
];
const ECDSA_WITH: [(ObjectIdentifier, Hash); 3] = [
    (oid("1.2.840.10045.4.3.2"), Hash::Sha256),
    (oid("1.2.840.10045.4.3.3"), Hash::Sha384),
    (oid("1.2.840.10045.4.3.4"), Hash::Sha512),
];
const HASHES: [(ObjectIdentifier, Hash); 3] = [
    (oid("2.16.840.1.101.3.4.2.1"), Hash::Sha256),
    (oid("2.16.840.1.101.3.4.2.2"), Hash::Sha384),
    (oid("2.16.840.1.101.3.4.2.3"), Hash::Sha512),
];
const ED25519: ObjectIdentifier = oid("1.3.101.112");
const EC: ObjectIdentifier = oid("1.2.840.10045.2.1");
const P256: ObjectIdentifier = oid("1.2.840.10045.3.1.7");
const P384: ObjectIdentifier = oid("1.3.132.0.34");

/// Sizes of RSA keys, in bits.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

type RsaKey<'a> = ring::signature::RsaPublicKeyComponents<&'a [u8]>;

/// A digest algorithm of signatures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

impl Hash {
    /// From an AlgorithmIdentifier.
    pub(super) fn parse(identifier: &Value<'_>) -> Result<Self, Reason> {
        let (name, parameters) = parts(identifier)?;
        let found = HASHES.iter().find(|(identifier, _)| name.is(*identifier));
        let (_, hash) = found.ok_or("its digest algorithm is none of SHA-256, 384 and 512")?;
        no_parameters(parameters.as_ref())?;
        Ok(*hash)
    }

    pub(super) fn digest(self, bytes: &[u8]) -> Vec<u8> {
        let algorithm = match self {
            Self::Sha256 => &SHA256,
            Self::Sha384 => &SHA384,
            Self::Sha512 => &SHA512,
        };
        digest(algorithm, bytes).as_ref().to_vec()
    }

    fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "SHA-256",
            Self::Sha384 => "SHA-384",
            Self::Sha512 => "SHA-512",
        }
    }
}

/// A signature algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    /// PKCS #1 v1.5, with a digest that is named elsewhere.
    RsaPlain,
    /// PKCS #1 v1.5.
    Rsa(Hash),
    RsaPss(Hash),
    Ecdsa(Hash),
    Ed25519,
}

impl Algorithm {
    /// From an AlgorithmIdentifier.
    pub(super) fn parse(identifier: &Value<'_>) -> Result<Self, Reason> {
        let (name, parameters) = parts(identifier)?;
        let of = |table: &[(ObjectIdentifier, Hash); 3]| {
            let found = table.iter().find(|(identifier, _)| name.is(*identifier));
            found.map(|(_, hash)| *hash)
        };
        if name.is(RSA_PSS) {
            return pss(parameters.ok_or("its RSA-PSS parameters are missing")?).map(Self::RsaPss);
        }
        let algorithm = if name.is(RSA) {
            Self::RsaPlain
        } else if let Some(hash) = of(&RSA_WITH) {
            Self::Rsa(hash)
        } else if let Some(hash) = of(&ECDSA_WITH) {
            Self::Ecdsa(hash)
        } else if name.is(ED25519) {
            Self::Ed25519
        } else {
            let shown = ObjectIdentifier::from_bytes(name.contents);
            let shown = shown.map_or_else(|_| "?".to_owned(), |name| name.to_string());
            return Err(format!("its signature algorithm {shown} is not accepted"));
        };
        no_parameters(parameters.as_ref())?;
        Ok(algorithm)
    }

    /// The digest that it is made with, where it says so.
    pub(super) fn hash(self) -> Option<Hash> {
        match self {
            Self::Rsa(hash) | Self::RsaPss(hash) | Self::Ecdsa(hash) => Some(hash),
            Self::RsaPlain | Self::Ed25519 => None,
        }
    }

    /// The same with the digest that is named elsewhere, which must not contradict.
    pub(super) fn with(self, hash: Hash) -> Result<Self, Reason> {
        match (self, self.hash()) {
            (Self::RsaPlain, _) => Ok(Self::Rsa(hash)),
            (_, Some(own)) if own != hash => {
                Err("its digest and signature algorithms contradict each other".to_owned())
            }
            _ => Ok(self),
        }
    }

    /// For people.
    pub(super) fn name(self) -> String {
        let with = |kind: &str, hash: Hash| format!("{kind} with {}", hash.name());
        match self {
            Self::RsaPlain => "RSA".to_owned(),
            Self::Rsa(hash) => with("RSA", hash),
            Self::RsaPss(hash) => with("RSA-PSS", hash),
            Self::Ecdsa(hash) => with("ECDSA", hash),
            Self::Ed25519 => "Ed25519".to_owned(),
        }
    }

    /// Whether `signature` is one over `message` by the key of this SubjectPublicKeyInfo.
    pub(super) fn verify(
        self,
        key: &Value<'_>,
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), Reason> {
        let key = Key::parse(key)?;
        let right = match (self, key) {
            (Self::Rsa(hash), Key::Rsa(key)) => {
                let kind = match hash {
                    Hash::Sha256 => &RSA_PKCS1_2048_8192_SHA256,
                    Hash::Sha384 => &RSA_PKCS1_2048_8192_SHA384,
                    Hash::Sha512 => &RSA_PKCS1_2048_8192_SHA512,
                };
                key.verify(kind, message, signature).is_ok()
            }
            (Self::RsaPss(hash), Key::Rsa(key)) => {
                let kind = match hash {
                    Hash::Sha256 => &RSA_PSS_2048_8192_SHA256,
                    Hash::Sha384 => &RSA_PSS_2048_8192_SHA384,
                    Hash::Sha512 => &RSA_PSS_2048_8192_SHA512,
                };
                key.verify(kind, message, signature).is_ok()
            }
            (Self::Ecdsa(hash), Key::P256(key)) => p256::ecdsa::Signature::from_der(signature)
                .is_ok_and(|signature| {
                    key.verify_prehash(&hash.digest(message), &signature)
                        .is_ok()
                }),
            (Self::Ecdsa(hash), Key::P384(key)) => p384::ecdsa::Signature::from_der(signature)
                .is_ok_and(|signature| {
                    key.verify_prehash(&hash.digest(message), &signature)
                        .is_ok()
                }),
            (Self::Ed25519, Key::Ed25519(key)) => ed25519_dalek::Signature::from_slice(signature)
                .is_ok_and(|signature| key.verify_strict(message, &signature).is_ok()),
            _ => return Err("the key is not one for its signature algorithm".to_owned()),
        };
        if right {
            Ok(())
        } else {
            Err("the signature is wrong".to_owned())
        }
    }
}

/// Name and parameters of an AlgorithmIdentifier.
fn parts<'a>(identifier: &Value<'a>) -> Result<(Value<'a>, Option<Value<'a>>), Reason> {
    let mut fields = identifier
        .expect(Tag::Sequence, "an algorithm")?
        .fields("an algorithm")?;
    let name = fields.take(Tag::ObjectIdentifier)?;
    let parameters = fields.next()?;
    fields.end()?;
    Ok((name, parameters))
}

/// Absent, or NULL.
fn no_parameters(parameters: Option<&Value<'_>>) -> Result<(), Reason> {
    match parameters {
        None => Ok(()),
        Some(value) if value.tag == Tag::Null && value.contents.is_empty() => Ok(()),
        Some(_) => Err("an algorithm has parameters that it must not have".to_owned()),
    }
}

/// `{ [0] hash, [1] mask generation, [2] salt length, [3] trailer field }`, all with defaults that
/// mean SHA-1 and are refused.
fn pss(parameters: Value<'_>) -> Result<Hash, Reason> {
    const WHAT: &str = "its RSA-PSS parameters";
    let refuse = || format!("{WHAT} are not accepted");
    let mut fields = parameters.expect(Tag::Sequence, WHAT)?.fields(WHAT)?;
    let mut explicit = |number| -> Result<Option<Value<'_>>, Reason> {
        match fields.optional(super::asn1::context(number))? {
            Some(value) => Value::whole(value.contents, WHAT).map(Some),
            None => Ok(None),
        }
    };
    let hash = Hash::parse(&explicit(0)?.ok_or_else(refuse)?)?;
    let (name, inner) = parts(&explicit(1)?.ok_or_else(refuse)?)?;
    let salt = explicit(2)?.ok_or_else(refuse)?;
    let trailer = explicit(3)?;
    fields.end()?;
    let inner = inner.ok_or_else(refuse)?;
    let salt_size = u8::try_from(hash.digest(&[]).len()).map_err(|_| refuse())?;
    let right = name.is(MGF1)
        && Hash::parse(&inner)? == hash
        && (salt.tag, salt.contents) == (Tag::Integer, &[salt_size])
        && trailer.is_none_or(|trailer| (trailer.tag, trailer.contents) == (Tag::Integer, &[1]));
    if right {
        Ok(hash)
    } else {
        Err(refuse())
    }
}

enum Key<'a> {
    Rsa(RsaKey<'a>),
    P256(p256::ecdsa::VerifyingKey),
    P384(p384::ecdsa::VerifyingKey),
    Ed25519(ed25519_dalek::VerifyingKey),
}

impl<'a> Key<'a> {
    /// From a SubjectPublicKeyInfo.
    fn parse(key: &Value<'a>) -> Result<Self, Reason> {
        const WHAT: &str = "the key of a certificate";
        let bad = || malformed(WHAT);
        let mut fields = key.expect(Tag::Sequence, WHAT)?.fields(WHAT)?;
        let (name, parameters) = parts(&fields.any()?)?;
        let bytes = fields.any()?.bytes_of_bits(WHAT)?;
        fields.end()?;
        if name.is(RSA) {
            no_parameters(parameters.as_ref())?;
            let whole = Value::whole(bytes, WHAT)?.expect(Tag::Sequence, WHAT)?;
            let mut fields = whole.fields(WHAT)?;
            let (n, e) = (fields.take(Tag::Integer)?, fields.take(Tag::Integer)?);
            fields.end()?;
            return Ok(Self::Rsa(rsa_key(n.contents, e.contents)?));
        }
        if name.is(ED25519) && parameters.is_none() {
            let bytes = bytes.try_into().map_err(|_| bad())?;
            let key = ed25519_dalek::VerifyingKey::from_bytes(bytes);
            return key.map(Self::Ed25519).map_err(|_| bad());
        }
        let curve = parameters.filter(|_| name.is(EC));
        if curve.is_some_and(|curve| curve.is(P256)) {
            let key = p256::ecdsa::VerifyingKey::from_sec1_bytes(bytes);
            return key.map(Self::P256).map_err(|_| bad());
        }
        if curve.is_some_and(|curve| curve.is(P384)) {
            let key = p384::ecdsa::VerifyingKey::from_sec1_bytes(bytes);
            return key.map(Self::P384).map_err(|_| bad());
        }
        Err("the key is none of RSA, P-256, P-384 and Ed25519".to_owned())
    }
}

/// The key of two INTEGERs: their bytes without zeros in front.
fn rsa_key<'a>(n: &'a [u8], e: &'a [u8]) -> Result<RsaKey<'a>, Reason> {
    let magnitude = |number: &'a [u8]| match number {
        // Positive: the first bit is clear.
        [0, rest @ ..] => Some(rest),
        [first, ..] if *first < 0x80 => Some(number),
        _ => None,
    };
    let accepted = magnitude(n).zip(magnitude(e)).filter(|(n, _)| {
        let unused = n.first().map_or(0, |first| first.leading_zeros() as usize);
        RSA_BITS.contains(&(n.len() * 8 - unused))
    });
    let (n, e) = accepted.ok_or("the RSA key has a size that is not accepted")?;
    Ok(RsaKey { n, e })
}

/// The values of a SEQUENCE that must be one.
pub(super) fn sequence<'a>(value: Value<'a>, what: &'static str) -> Result<Fields<'a>, Reason> {
    value.expect(Tag::Sequence, what)?.fields(what)
}
