//! STLV, the encoding under a bundle: a stream of *atoms*.
//!
//! ```text
//! atom      = tag (4 bytes) indicator (1 byte) [varint] [value]
//! indicator = 0x40         segment start, no value
//!           | 0x00         segment end, no value
//!           | 0x80 + n     value of n bytes, n in 0..=126
//!           | 0xff varint  value of 127 + N bytes, N the varint
//! varint    = base 128, most significant group first, bit 7 set on all bytes but the last;
//!             no leading zero group, N < 2^63: each length has exactly one encoding
//! ```
//!
//! Segments nest and close in order with the same tag. A tag with its top bit set is *optional*: a
//! reader that does not know it skips it with all it holds. Any other unknown tag must stop the
//! reader ([`Atom::skip`]).
//!
//! Everything here is a pure function of a byte slice. Nothing recurses, nothing allocates by a
//! length field, nesting is bounded by [`MAX_DEPTH`]. `offset` arguments are the place of the
//! slice in the bundle and serve only the messages.

#![deny(clippy::indexing_slicing)]

use std::fmt;

use crate::error::{Error, Result};

/// Deepest nesting of segments that is read, also inside skipped ones.
pub const MAX_DEPTH: usize = 16;

/// Longest head: tag, indicator, nine varint bytes.
pub const MAX_HEAD: usize = 14;

/// An atom's tag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tag(pub u32);

impl Tag {
    /// Readers that do not know the tag may skip it.
    pub fn is_optional(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// What follows a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A segment begins.
    Start,
    /// A segment ends.
    End,
    /// A value of so many bytes.
    Value(u64),
}

/// An atom without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The tag.
    pub tag: Tag,
    /// What follows.
    pub kind: Kind,
    /// Size of the head itself in bytes.
    pub len: usize,
}

/// Result of looking at bytes that may not be all there yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan<T> {
    /// At least so many bytes, counted from the start of the slice, are needed to decide.
    Need(usize),
    /// Decided.
    Done(T),
}

fn malformed<T>(offset: u64, reason: &'static str) -> Result<T> {
    Err(Error::Malformed { offset, reason })
}

/// Reads the head at the start of `bytes`.
pub fn head(bytes: &[u8], offset: u64) -> Result<Scan<Head>> {
    let Some((tag, rest)) = bytes.split_first_chunk::<4>() else {
        return Ok(Scan::Need(5));
    };
    let Some((indicator, rest)) = rest.split_first() else {
        return Ok(Scan::Need(5));
    };
    let tag = Tag(u32::from_be_bytes(*tag));
    let done = |kind, len| Ok(Scan::Done(Head { tag, kind, len }));
    match indicator {
        0x40 => done(Kind::Start, 5),
        0x00 => done(Kind::End, 5),
        0xff => {
            if rest.first() == Some(&0x80) {
                return malformed(offset, "a length has a leading zero group");
            }
            let mut n: u64 = 0;
            for (i, byte) in rest.iter().enumerate() {
                if n >> 56 != 0 {
                    return malformed(offset, "a length does not fit 63 bits");
                }
                n = (n << 7) | u64::from(byte & 0x7f);
                if byte & 0x80 == 0 {
                    return match n.checked_add(127) {
                        Some(len) if n < 1 << 63 => done(Kind::Value(len), 6 + i),
                        _ => malformed(offset, "a length does not fit 63 bits"),
                    };
                }
            }
            Ok(Scan::Need(6 + rest.len()))
        }
        0x80..=0xfe => done(Kind::Value(u64::from(indicator & 0x7f)), 5),
        _ => malformed(offset, "an indicator byte is invalid"),
    }
}

/// Finds the end of the atom (a value, or a segment with all it holds) at the start of `bytes`.
///
/// `limit` bounds the whole atom; it is checked before a value is waited for, so that a length
/// field cannot make a caller collect more than `limit` bytes.
pub fn whole(bytes: &[u8], offset: u64, limit: usize) -> Result<Scan<usize>> {
    let mut open: [Tag; MAX_DEPTH] = [Tag(0); MAX_DEPTH];
    let mut depth = 0;
    let mut at = 0;
    loop {
        let here = offset.saturating_add(at as u64);
        let head = match head(bytes.get(at..).unwrap_or_default(), here)? {
            Scan::Need(n) => {
                let need = at.saturating_add(n);
                return if need > limit.saturating_add(MAX_HEAD) {
                    malformed(offset, "a structure is larger than allowed")
                } else {
                    Ok(Scan::Need(need))
                };
            }
            Scan::Done(head) => head,
        };
        at = at.saturating_add(head.len);
        match head.kind {
            Kind::Start => match open.get_mut(depth) {
                Some(slot) => {
                    *slot = head.tag;
                    depth += 1;
                }
                None => return malformed(here, "segments are nested too deep"),
            },
            Kind::End => {
                let innermost = depth.checked_sub(1).and_then(|i| open.get(i));
                if innermost != Some(&head.tag) {
                    return malformed(here, "a segment ends that is not the innermost open one");
                }
                depth -= 1;
            }
            Kind::Value(len) => {
                at = match usize::try_from(len)
                    .ok()
                    .and_then(|len| at.checked_add(len))
                {
                    Some(end) if end <= limit => end,
                    _ => return malformed(here, "a structure is larger than allowed"),
                };
            }
        }
        if at > limit {
            return malformed(here, "a structure is larger than allowed");
        }
        if at > bytes.len() {
            return Ok(Scan::Need(at));
        }
        if depth == 0 {
            return Ok(Scan::Done(at));
        }
    }
}

/// One direct child of a segment.
#[derive(Clone, Copy, Debug)]
pub struct Atom<'a> {
    /// The tag.
    pub tag: Tag,
    /// Offset of its head.
    pub offset: u64,
    body: Body<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Body<'a> {
    Value(&'a [u8]),
    /// What stands between start and end, and the offset of its first byte.
    Segment(&'a [u8], u64),
}

impl<'a> Atom<'a> {
    /// The value bytes; an error if this is a segment.
    pub fn value(&self) -> Result<&'a [u8]> {
        match self.body {
            Body::Value(value) => Ok(value),
            Body::Segment(..) => malformed(self.offset, "a segment stands where a value belongs"),
        }
    }

    /// A UTF-8 value.
    pub fn text(&self) -> Result<&'a str> {
        match std::str::from_utf8(self.value()?) {
            Ok(text) => Ok(text),
            Err(_) => malformed(self.offset, "a string is not UTF-8"),
        }
    }

    /// A boolean value: one byte, 0 or 1.
    pub fn boolean(&self) -> Result<bool> {
        match self.value()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => malformed(self.offset, "a boolean is neither 0 nor 1"),
        }
    }

    /// The children of a segment; an error if this is a value.
    pub fn children(&self) -> Result<Atoms<'a>> {
        match self.body {
            Body::Segment(inside, offset) => Ok(Atoms::new(inside, offset)),
            Body::Value(_) => malformed(self.offset, "a value stands where a segment belongs"),
        }
    }

    /// What to do with a tag that is not known here: nothing if it is optional, else an error.
    pub fn skip(&self) -> Result<()> {
        unknown(self.tag, self.offset)
    }
}

/// Passes over an unknown optional tag, refuses an unknown required one.
pub fn unknown(tag: Tag, offset: u64) -> Result<()> {
    if tag.is_optional() {
        Ok(())
    } else {
        Err(Error::Unsupported(format!(
            "it needs a newer reader, required tag {tag} at offset {offset} is not known here"
        )))
    }
}

/// Iterates over the atoms of a slice that holds complete atoms only.
#[derive(Clone, Debug)]
pub struct Atoms<'a> {
    rest: &'a [u8],
    offset: u64,
}

impl<'a> Atoms<'a> {
    /// The atoms of `bytes`, which stand at `offset` of the bundle.
    pub fn new(bytes: &'a [u8], offset: u64) -> Self {
        Self {
            rest: bytes,
            offset,
        }
    }

    /// Offset of the next atom, or of the end.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next atom, or `None` at the end of the slice.
    pub fn next_atom(&mut self) -> Result<Option<Atom<'a>>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (Scan::Done(head), Scan::Done(len)) = (
            head(self.rest, self.offset)?,
            whole(self.rest, self.offset, usize::MAX - MAX_HEAD)?,
        ) else {
            return malformed(self.offset, "the data end inside an atom");
        };
        let (atom, rest) = self.rest.split_at_checked(len).unwrap_or((self.rest, &[]));
        let inside = atom.get(head.len..).unwrap_or_default();
        let body = match head.kind {
            Kind::Value(_) => Body::Value(inside),
            // `whole` saw the matching end head, which is as long as any end head.
            _ => Body::Segment(
                inside.split_last_chunk::<5>().map_or(inside, |(i, _)| i),
                self.offset + head.len as u64,
            ),
        };
        let atom = Atom {
            tag: head.tag,
            offset: self.offset,
            body,
        };
        self.rest = rest;
        self.offset += len as u64;
        Ok(Some(atom))
    }
}

/// A field of a structure that may occur once.
#[derive(Clone, Copy, Debug)]
pub struct Once<T>(Option<T>);

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Once<T> {
    /// Takes the field's value; an error the second time.
    pub fn set(&mut self, value: T, offset: u64) -> Result<()> {
        match self.0.replace(value) {
            None => Ok(()),
            Some(_) => malformed(offset, "a field occurs twice"),
        }
    }

    /// The value if the field occurred.
    pub fn get(self) -> Option<T> {
        self.0
    }

    /// The value, or an error that says which field (`reason`) of the structure at `offset` is missing.
    pub fn require(self, offset: u64, reason: &'static str) -> Result<T> {
        self.0.ok_or(Error::Malformed { offset, reason })
    }
}

/// Writes atoms, the exact inverse of reading.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// A segment start.
    pub fn start(&mut self, tag: Tag) -> &mut Self {
        self.tag(tag).bytes.push(0x40);
        self
    }

    /// A segment end.
    pub fn end(&mut self, tag: Tag) -> &mut Self {
        self.tag(tag).bytes.push(0x00);
        self
    }

    /// The head of a value of `len` bytes, which the caller writes.
    #[allow(clippy::cast_possible_truncation)] // seven bits at a time
    pub fn value_head(&mut self, tag: Tag, len: u64) -> &mut Self {
        self.tag(tag);
        match len.checked_sub(127) {
            None => self.bytes.push(0x80 | (len as u8 & 0x7f)),
            Some(n) => {
                self.bytes.push(0xff);
                let groups = (64 - n.max(1).leading_zeros()).div_ceil(7);
                for group in (0..groups).rev() {
                    let more = if group > 0 { 0x80 } else { 0 };
                    self.bytes.push(more | ((n >> (group * 7)) as u8 & 0x7f));
                }
            }
        }
        self
    }

    /// A value atom.
    pub fn value(&mut self, tag: Tag, value: &[u8]) -> &mut Self {
        self.value_head(tag, value.len() as u64)
            .bytes
            .extend_from_slice(value);
        self
    }

    /// Atoms that are written already.
    pub fn append(&mut self, atoms: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(atoms);
        self
    }

    /// Everything written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn tag(&mut self, tag: Tag) -> &mut Self {
        self.bytes.extend_from_slice(&tag.0.to_be_bytes());
        self
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;

    const A: Tag = Tag(0x0a0a_0a0a);
    const B: Tag = Tag(0x8b0b_0b0b);

    #[test]
    fn lengths_have_one_encoding() {
        for (len, expected) in [
            (0u64, &[0x80u8][..]),
            (1, &[0x81]),
            (126, &[0xfe]),
            (127, &[0xff, 0x00]),
            (254, &[0xff, 0x7f]),
            (255, &[0xff, 0x81, 0x00]),
            (372, &[0xff, 0x81, 0x75]),
            (16510, &[0xff, 0xff, 0x7f]),
            (16511, &[0xff, 0x81, 0x80, 0x00]),
            (
                (1 << 63) + 126,
                &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
            ),
        ] {
            let mut writer = Writer::default();
            writer.value_head(A, len);
            let bytes = writer.into_bytes();
            assert_eq!(&bytes[4..], expected, "{len}");
            let Ok(Scan::Done(head)) = head(&bytes, 0) else {
                panic!("{len} does not parse");
            };
            assert_eq!(head.kind, Kind::Value(len));
            assert_eq!(head.len, bytes.len());
            for cut in 0..bytes.len() {
                assert!(
                    matches!(super::head(&bytes[..cut], 0), Ok(Scan::Need(n)) if n > cut),
                    "{len} cut at {cut}"
                );
            }
        }
    }

    #[test]
    fn refuses_what_no_writer_writes() {
        for (tail, reason) in [
            (&[0x01u8][..], "indicator"),
            (&[0x3f], "indicator"),
            (&[0x41], "indicator"),
            (&[0x7f], "indicator"),
            (&[0xff, 0x80], "leading zero"),
            (
                &[
                    0xff, 0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00,
                ],
                "63 bits",
            ),
            (&[0xff; 30], "63 bits"),
        ] {
            let mut bytes = A.0.to_be_bytes().to_vec();
            bytes.extend_from_slice(tail);
            let error = head(&bytes, 77).expect_err("refused");
            assert!(error.to_string().contains(reason), "{error}");
            assert!(error.to_string().contains("77"), "{error}");
        }
    }

    #[test]
    fn a_segment_needs_all_of_its_bytes() {
        let mut writer = Writer::default();
        writer
            .start(A)
            .value(B, b"hello")
            .start(B)
            .value(A, &[7; 300])
            .end(B)
            .end(A);
        let bytes = writer.into_bytes();
        for cut in 0..bytes.len() {
            match whole(&bytes[..cut], 0, 1000) {
                Ok(Scan::Need(n)) => assert!(n > cut && n <= bytes.len()),
                other => panic!("cut at {cut}: {other:?}"),
            }
        }
        assert_eq!(
            whole(&bytes, 0, 1000).expect("good"),
            Scan::Done(bytes.len())
        );
        assert!(whole(&bytes, 0, bytes.len() - 1).is_err());

        let mut atoms = Atoms::new(&bytes, 100);
        let outer = atoms.next_atom().expect("good").expect("there");
        assert_eq!((outer.tag, outer.offset), (A, 100));
        assert!(outer.value().is_err());
        let mut children = outer.children().expect("a segment");
        let first = children.next_atom().expect("good").expect("there");
        assert_eq!((first.tag, first.text().expect("text")), (B, "hello"));
        assert!(first.children().is_err());
        let second = children.next_atom().expect("good").expect("there");
        let inner = second.children().expect("a segment").next_atom();
        assert_eq!(
            inner
                .expect("good")
                .expect("there")
                .value()
                .expect("a value")
                .len(),
            300
        );
        assert!(children.next_atom().expect("good").is_none());
        assert!(atoms.next_atom().expect("good").is_none());
    }

    #[test]
    fn depth_and_order_are_bounded() {
        let nested = |depth: usize| {
            let mut writer = Writer::default();
            for _ in 0..depth {
                writer.start(B);
            }
            for _ in 0..depth {
                writer.end(B);
            }
            writer.into_bytes()
        };
        assert!(whole(&nested(MAX_DEPTH), 0, 1 << 20).is_ok());
        assert!(whole(&nested(MAX_DEPTH + 1), 0, 1 << 20).is_err());
        let mut writer = Writer::default();
        writer.start(A).start(B).end(A).end(B);
        assert!(whole(&writer.into_bytes(), 0, 1 << 20).is_err());
        let mut writer = Writer::default();
        writer.end(A);
        assert!(whole(&writer.into_bytes(), 0, 1 << 20).is_err());
    }

    #[test]
    fn a_length_field_cannot_make_a_reader_wait_for_more_than_the_limit() {
        let mut writer = Writer::default();
        writer.start(A).value_head(B, 1 << 62);
        assert!(whole(&writer.into_bytes(), 0, 1 << 20).is_err());
    }

    #[test]
    fn unknown_tags() {
        assert!(unknown(B, 0).is_ok());
        assert!(matches!(unknown(A, 0), Err(Error::Unsupported(_))));
    }
}
