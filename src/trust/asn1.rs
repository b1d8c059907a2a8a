//! DER, as far as certificates and signatures need it: a reader over a slice that hands out one
//! value after another.
//!
//! Which bytes belong to a value is the business of the crate `der`, which takes nothing but DER:
//! no indefinite lengths, no lengths with leading zeros. Nothing is decoded that is not asked for,
//! nothing is copied, nothing recurses; values keep the bytes they were read from, since signatures
//! are over those and not over what an encoder would make of them.

use der::asn1::{GeneralizedTime, ObjectIdentifier, UtcTime};
use der::{Decode, Header, Reader, SliceReader, Tag};

use super::Reason;
use crate::clock::Time;

/// One value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value<'a> {
    /// Tag, length and contents.
    pub(super) raw: &'a [u8],
    /// The contents.
    pub(super) contents: &'a [u8],
    pub(super) tag: Tag,
}

/// The tag `[number]` of a constructed value.
pub(super) fn context(number: u32) -> Tag {
    Tag::ContextSpecific {
        constructed: true,
        number: der::TagNumber(number),
    }
}

/// The tag `[number]` of a primitive value.
pub(super) fn context_primitive(number: u32) -> Tag {
    Tag::ContextSpecific {
        constructed: false,
        number: der::TagNumber(number),
    }
}

/// An object identifier, for a constant.
pub(super) const fn oid(text: &str) -> ObjectIdentifier {
    ObjectIdentifier::new_unwrap(text)
}

impl<'a> Value<'a> {
    /// The one value that these bytes are, with nothing behind it.
    pub(super) fn whole(bytes: &'a [u8], what: &'static str) -> Result<Self, Reason> {
        let mut fields = Fields::new(bytes, what)?;
        let value = fields.any()?;
        fields.end()?;
        Ok(value)
    }

    /// The values in it.
    pub(super) fn fields(&self, what: &'static str) -> Result<Fields<'a>, Reason> {
        Fields::new(self.contents, what)
    }

    /// It, if its tag is this.
    pub(super) fn expect(self, tag: Tag, what: &'static str) -> Result<Self, Reason> {
        if self.tag == tag {
            Ok(self)
        } else {
            Err(malformed(what))
        }
    }

    pub(super) fn is(&self, identifier: ObjectIdentifier) -> bool {
        self.tag == Tag::ObjectIdentifier && self.contents == identifier.as_bytes()
    }

    /// The bytes of a bit string of whole bytes.
    pub(super) fn bytes_of_bits(&self, what: &'static str) -> Result<&'a [u8], Reason> {
        match (self.tag, self.contents.split_first()) {
            (Tag::BitString, Some((0, bytes))) => Ok(bytes),
            _ => Err(malformed(what)),
        }
    }

    /// A time in either of the two forms.
    pub(super) fn time(&self) -> Result<Time, Reason> {
        let since = match self.tag {
            Tag::UtcTime => UtcTime::from_der(self.raw).map(|time| time.to_unix_duration()),
            _ => GeneralizedTime::from_der(self.raw).map(|time| time.to_unix_duration()),
        };
        since
            .map(|since| Time(since.as_secs()))
            .map_err(|_| malformed("the validity of a certificate"))
    }
}

/// The values of a sequence or set, one after another.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    reader: SliceReader<'a>,
    /// What they are the fields of, for messages.
    what: &'static str,
}

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8], what: &'static str) -> Result<Self, Reason> {
        let reader = SliceReader::new(bytes).map_err(|_| malformed(what))?;
        Ok(Self { reader, what })
    }

    /// The next one, if there is one.
    pub(super) fn next(&mut self) -> Result<Option<Value<'a>>, Reason> {
        if self.reader.is_finished() {
            return Ok(None);
        }
        let fail = |_| malformed(self.what);
        let header = Header::peek(&self.reader).map_err(fail)?;
        let raw = self.reader.tlv_bytes().map_err(fail)?;
        let length = usize::try_from(header.length()).map_err(fail)?;
        let start = raw.len().checked_sub(length);
        let contents = start.and_then(|start| raw.get(start..));
        Ok(Some(Value {
            raw,
            contents: contents.ok_or_else(|| malformed(self.what))?,
            tag: header.tag(),
        }))
    }

    /// The next one, whatever it is.
    pub(super) fn any(&mut self) -> Result<Value<'a>, Reason> {
        self.next()?.ok_or_else(|| malformed(self.what))
    }

    /// The next one, which must have this tag.
    pub(super) fn take(&mut self, tag: Tag) -> Result<Value<'a>, Reason> {
        self.any()?.expect(tag, self.what)
    }

    /// The next one, if it has this tag.
    pub(super) fn optional(&mut self, tag: Tag) -> Result<Option<Value<'a>>, Reason> {
        match self.clone().next()? {
            Some(value) if value.tag == tag => self.next(),
            _ => Ok(None),
        }
    }

    /// That there are no more.
    pub(super) fn end(&self) -> Result<(), Reason> {
        if self.reader.is_finished() {
            Ok(())
        } else {
            Err(malformed(self.what))
        }
    }

    /// All that are left, which must all have this tag, and be no more than so many.
    pub(super) fn all(mut self, tag: Tag, limit: usize) -> Result<Vec<Value<'a>>, Reason> {
        let mut values = Vec::new();
        while let Some(value) = self.next()? {
            if values.len() == limit {
                return Err(format!("there are too many values in {}", self.what));
            }
            values.push(value.expect(tag, self.what)?);
        }
        Ok(values)
    }
}

pub(super) fn malformed(what: &str) -> Reason {
    format!("{what} is malformed")
}
