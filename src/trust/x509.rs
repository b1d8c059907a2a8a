//! Certificates: what a chain is built from (RFC 5280).
//!
//! ```text
//! Certificate    = { tbs, signature algorithm, signature }
//! tbs            = { [0] version, serial, signature algorithm, issuer, { not before, not after },
//!                    subject, key, [1] .., [2] .., [3] { extension* } }
//! extension      = { name, critical?, contents }
//! ```
//!
//! Names are compared byte for byte. Of the extensions those are read that decide something; a
//! critical one that is not among them makes the certificate useless, except as a root.

use std::fmt::Write;

use der::asn1::ObjectIdentifier;
use der::Tag;

use super::asn1::{context, context_primitive, malformed, oid, Value};
use super::key::{sequence, Algorithm};
use super::Reason;
use crate::clock::{Now, Time};

const BASIC_CONSTRAINTS: ObjectIdentifier = oid("2.5.29.19");
const KEY_USAGE: ObjectIdentifier = oid("2.5.29.15");
const EXTENDED_KEY_USAGE: ObjectIdentifier = oid("2.5.29.37");
const SUBJECT_KEY_ID: ObjectIdentifier = oid("2.5.29.14");
const NAME_CONSTRAINTS: ObjectIdentifier = oid("2.5.29.30");

/// The purposes of which one must be among a certificate's, if it names any.
const PURPOSES: [ObjectIdentifier; 3] = [
    // codeSigning, which the reference asks for since 1.3.
    oid("1.3.6.1.5.5.7.3.3"),
    // emailProtection, which it asked for before, as OpenSSL does.
    oid("1.3.6.1.5.5.7.3.4"),
    // anyExtendedKeyUsage.
    oid("2.5.29.37.0"),
];

/// Most extensions, and most purposes in one.
const MAX_EXTENSIONS: usize = 32;

/// Longest name for people, in characters.
const MAX_NAME: usize = 160;

const WHAT: &str = "a certificate";

const CONSTRAINED: &str = "it has name constraints, which are not supported";

/// A certificate.
#[derive(Clone, Debug)]
pub(super) struct Certificate<'a> {
    /// All of it.
    pub(super) raw: &'a [u8],
    tbs: Value<'a>,
    algorithm: Value<'a>,
    signature: &'a [u8],
    pub(super) serial: Value<'a>,
    pub(super) issuer: Value<'a>,
    pub(super) subject: Value<'a>,
    pub(super) not_before: Time,
    pub(super) not_after: Time,
    pub(super) key: Value<'a>,
    v3: bool,
    pub(super) key_id: Option<&'a [u8]>,
    /// It may issue others, with so many authorities in between.
    authority: Option<Authority>,
    /// The first byte of the bits of key usage.
    key_usage: Option<u8>,
    /// Its purposes allow signing of updates.
    purposes: Option<bool>,
    /// Why it cannot be used, whatever for.
    odd: Option<&'static str>,
}

/// The basic constraints of an authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Authority {
    path_length: Option<u8>,
}

impl<'a> Certificate<'a> {
    pub(super) fn parse(raw: &'a [u8]) -> Result<Self, Reason> {
        let mut fields = sequence(Value::whole(raw, WHAT)?, WHAT)?;
        let tbs = fields.take(Tag::Sequence)?;
        let algorithm = fields.take(Tag::Sequence)?;
        let signature = fields.any()?.bytes_of_bits(WHAT)?;
        fields.end()?;

        let mut fields = tbs.fields(WHAT)?;
        let v3 = match fields.optional(context(0))? {
            None => false,
            Some(version) => {
                let version = Value::whole(version.contents, WHAT)?;
                (version.tag, version.contents) == (Tag::Integer, &[2])
            }
        };
        let serial = fields.take(Tag::Integer)?;
        if fields.take(Tag::Sequence)?.raw != algorithm.raw {
            return Err("a certificate contradicts itself in its signature algorithm".to_owned());
        }
        let issuer = fields.take(Tag::Sequence)?;
        let mut validity = fields.take(Tag::Sequence)?.fields(WHAT)?;
        let (not_before, not_after) = (validity.any()?.time()?, validity.any()?.time()?);
        validity.end()?;
        let subject = fields.take(Tag::Sequence)?;
        let key = fields.take(Tag::Sequence)?;
        // Unique identifiers, which nobody uses.
        fields.optional(context_primitive(1))?;
        fields.optional(context_primitive(2))?;
        let extensions = fields.optional(context(3))?;
        fields.end()?;

        let mut certificate = Self {
            raw,
            tbs,
            algorithm,
            signature,
            serial,
            issuer,
            subject,
            not_before,
            not_after,
            key,
            v3,
            key_id: None,
            authority: None,
            key_usage: None,
            purposes: None,
            odd: None,
        };
        if let Some(extensions) = extensions {
            certificate.take_extensions(extensions)?;
        }
        Ok(certificate)
    }

    fn take_extensions(&mut self, extensions: Value<'a>) -> Result<(), Reason> {
        let whole = Value::whole(extensions.contents, WHAT)?;
        let all = sequence(whole, WHAT)?.all(Tag::Sequence, MAX_EXTENSIONS)?;
        let mut seen: Vec<&[u8]> = Vec::new();
        for extension in all {
            let mut fields = extension.fields(WHAT)?;
            let name = fields.take(Tag::ObjectIdentifier)?;
            let critical = match fields.optional(Tag::Boolean)? {
                None => false,
                Some(critical) => critical.contents == [0xff],
            };
            let contents = fields.take(Tag::OctetString)?.contents;
            fields.end()?;
            if seen.contains(&name.contents) {
                return Err("a certificate has an extension twice".to_owned());
            }
            seen.push(name.contents);
            if name.is(BASIC_CONSTRAINTS) {
                self.authority = basic_constraints(contents)?;
            } else if name.is(KEY_USAGE) {
                let bits = Value::whole(contents, WHAT)?.expect(Tag::BitString, WHAT)?;
                // The first byte counts the unused bits at the end, which are zero.
                self.key_usage = Some(bits.contents.get(1).copied().unwrap_or(0));
            } else if name.is(EXTENDED_KEY_USAGE) {
                let whole = Value::whole(contents, WHAT)?;
                let named = sequence(whole, WHAT)?.all(Tag::ObjectIdentifier, MAX_EXTENSIONS)?;
                let fits = |name: &Value<'_>| PURPOSES.iter().any(|purpose| name.is(*purpose));
                self.purposes = Some(named.iter().any(fits));
            } else if name.is(SUBJECT_KEY_ID) {
                let id = Value::whole(contents, WHAT)?.expect(Tag::OctetString, WHAT)?;
                self.key_id = Some(id.contents);
            } else if name.is(NAME_CONSTRAINTS) {
                // Not looked at, so not obeyed, critical or not.
                self.odd = Some(CONSTRAINED);
            } else if critical && self.odd.is_none() {
                self.odd = Some("it has a critical extension that is not known here");
            }
        }
        Ok(())
    }

    /// Whether its key may sign an update: version, extensions, usage, purposes.
    pub(super) fn may_sign(&self) -> Result<(), Reason> {
        self.check_usable()?;
        if self.key_usage.is_some_and(|usage| usage & 0x80 == 0) {
            return Err(self.refused("its key usage has no digitalSignature"));
        }
        Ok(())
    }

    /// Whether it may issue others below the root, with so many authorities in between.
    pub(super) fn may_issue(&self, between: usize) -> Result<(), Reason> {
        self.check_usable()?;
        let authority = self
            .authority
            .ok_or_else(|| self.refused("it is not one of an authority"))?;
        if self.key_usage.is_some_and(|usage| usage & 0x04 == 0) {
            return Err(self.refused("its key usage has no keyCertSign"));
        }
        match authority.path_length {
            Some(length) if usize::from(length) < between => {
                Err(self.refused("there are more authorities below it than it allows"))
            }
            _ => Ok(()),
        }
    }

    /// The same for a root: it is trusted as it is, but what it says of itself counts.
    pub(super) fn may_issue_as_root(&self, between: usize) -> Result<(), Reason> {
        if self.odd == Some(CONSTRAINED) {
            return Err(self.refused(CONSTRAINED));
        }
        if self.authority.is_some() || !self.v3 {
            let length = self.authority.and_then(|authority| authority.path_length);
            if length.is_some_and(|length| usize::from(length) < between) {
                return Err(self.refused("there are more authorities below it than it allows"));
            }
            return Ok(());
        }
        Err(self.refused("it is not one of an authority, so it can only be the signer's own"))
    }

    /// Whether it is the certificate of an authority.
    pub(super) fn is_authority(&self) -> bool {
        self.authority.is_some()
    }

    fn check_usable(&self) -> Result<(), Reason> {
        if !self.v3 {
            return Err(self.refused("it is older than X.509 version 3"));
        }
        if let Some(odd) = self.odd {
            return Err(self.refused(odd));
        }
        if self.purposes == Some(false) {
            return Err(
                self.refused("its extended key usage has neither codeSigning nor emailProtection")
            );
        }
        Ok(())
    }

    /// Whether it is valid at this time.
    pub(super) fn check_dates(&self, now: &Now) -> Result<(), Reason> {
        if now.time < self.not_before {
            return Err(format!(
                "certificate {:?} is valid from {} on, and {now}; set the clock, or give \
                 --time-floor",
                self.name(),
                self.not_before
            ));
        }
        if now.time > self.not_after {
            return Err(format!(
                "certificate {:?} expired on {}, and {now}",
                self.name(),
                self.not_after
            ));
        }
        Ok(())
    }

    /// Whether this key signed it.
    pub(super) fn check_signature(&self, issuer: &Certificate<'_>) -> Result<(), Reason> {
        let algorithm = Algorithm::parse(&self.algorithm)?;
        algorithm
            .verify(&issuer.key, self.tbs.raw, self.signature)
            .map_err(|reason| {
                format!(
                    "certificate {:?} is not from {:?}: {reason}",
                    self.name(),
                    issuer.name()
                )
            })
    }

    /// Its subject, for people.
    pub(super) fn name(&self) -> String {
        shown(&self.subject)
    }

    /// Its issuer, for people.
    pub(super) fn issuer_name(&self) -> String {
        shown(&self.issuer)
    }

    fn refused(&self, reason: &str) -> Reason {
        format!("certificate {:?} cannot be used: {reason}", self.name())
    }
}

fn basic_constraints(contents: &[u8]) -> Result<Option<Authority>, Reason> {
    const WHAT: &str = "the basic constraints of a certificate";
    let mut fields = sequence(Value::whole(contents, WHAT)?, WHAT)?;
    let authority = match fields.optional(Tag::Boolean)? {
        None => false,
        Some(value) => value.contents == [0xff],
    };
    let path_length = match fields.optional(Tag::Integer)?.map(|value| value.contents) {
        None => None,
        Some([length]) if *length < 0x80 => Some(*length),
        Some(_) => return Err(malformed(WHAT)),
    };
    fields.end()?;
    Ok(authority.then_some(Authority { path_length }))
}

/// A name for people: `CN=…, O=…`. What it says was not checked by anyone when this is shown.
fn shown(name: &Value<'_>) -> String {
    let mut text = String::new();
    // What cannot be read is left out.
    drop(append(name, &mut text));
    if text.is_empty() {
        text.push_str("without a name");
    }
    let clean = text.chars().map(|c| if c.is_control() { '?' } else { c });
    clean.take(MAX_NAME).collect()
}

fn append(name: &Value<'_>, text: &mut String) -> Result<(), Reason> {
    const WHAT: &str = "a name";
    let mut parts = name.fields(WHAT)?;
    while let Some(part) = parts.next()? {
        let mut values = part.fields(WHAT)?;
        while let Some(value) = values.next()? {
            let mut fields = value.fields(WHAT)?;
            let kind = fields.take(Tag::ObjectIdentifier)?;
            let value = String::from_utf8_lossy(fields.any()?.contents);
            let label = match kind.contents {
                [0x55, 4, 3] => "CN",
                [0x55, 4, 6] => "C",
                [0x55, 4, 7] => "L",
                [0x55, 4, 8] => "ST",
                [0x55, 4, 10] => "O",
                [0x55, 4, 11] => "OU",
                _ => "?",
            };
            let comma = if text.is_empty() { "" } else { ", " };
            write!(text, "{comma}{label}={value}").map_err(|_| malformed(WHAT))?;
            if text.len() > 4 * MAX_NAME {
                return Ok(());
            }
        }
    }
    Ok(())
}
