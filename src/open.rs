//! From the bundle's first bytes to a trusted header, and on to each payload's index.
//!
//! Raw bytes are compared with what is trusted before they are interpreted: the bundle header with
//! the user's hash, or with the hash that the owner signed; each payload header with its digest in
//! the bundle header. Until then only lengths are followed, under limits, to find where a header
//! ends. The chain goes on from there:
//! block digests stand in the payload headers, and the payload digest in the bundle header.
//!
//! With ranges this takes two requests for one payload, one if its index is small: the place of
//! everything is known from lengths, nothing is probed. The data of a payload are jumped over to
//! get to the header of the next.

use std::ops::Range;
use std::sync::Arc;

use crate::bundle::{Header, Payload};
use crate::error::{Error, Result, Subject, HTML};
use crate::hash::Digest;
use crate::remote::Cursor;
use crate::rugix::{
    parse_header, parse_payload_header, parse_signatures, tag, MAX_HEADER_SIZE,
    MAX_PAYLOAD_HEADER_SIZE, MAX_SIGNATURES_SIZE, MAX_SKIPPED_SIZE,
};
use crate::stlv::{self, Head, Kind, Scan, Tag};
use crate::trust::Roots;

/// Largest payload as stored: a length field that no digest covers may promise no more.
const MAX_PAYLOAD_SIZE: u64 = 1 << 40;

/// Bytes behind a payload's data in which its end must stand: its end head, and whatever optional
/// atoms a newer bundler may put before it.
const MAX_CLOSING_SIZE: u64 = 64 << 10;

/// What a bundle must prove before anything is done with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Its bundle hash is this.
    Hash(Digest),
    /// One of its signatures is good by one of these roots.
    Signed(Arc<Roots>),
    /// Both.
    HashAndSigned(Digest, Arc<Roots>),
    /// Nothing. Its digests still guard against accidents.
    Insecure,
}

/// A bundle whose header is trusted.
#[derive(Debug)]
pub struct Opening {
    cursor: Cursor,
    header: Header,
    raw: Raw,
    /// Number of the next payload.
    next: usize,
    /// End of the data of the payload before.
    data_end: Option<u64>,
}

/// The bytes that the trust in a bundle rests on.
#[derive(Clone, Debug)]
pub struct Raw {
    /// The bundle header, both heads included.
    pub header: Vec<u8>,
    /// Its offset in the bundle.
    pub header_at: u64,
    /// The signatures segment, both heads included, and its offset; `None` if there is none.
    pub signatures: Option<(Vec<u8>, u64)>,
}

impl Raw {
    /// The CMS signatures.
    pub fn signatures(&self) -> Result<Vec<&[u8]>> {
        match &self.signatures {
            Some((raw, offset)) => parse_signatures(raw, *offset),
            None => Ok(Vec::new()),
        }
    }
}

/// A payload whose header is trusted.
#[derive(Debug)]
pub struct Opened {
    /// The payload.
    pub payload: Payload,
    /// The beginning of its data, as far as it came along with the header.
    pub in_hand: Vec<u8>,
}

/// Reads and checks the bundle header.
pub fn open(mut cursor: Cursor, trust: &Trust) -> Result<Opening> {
    match peek(&mut cursor) {
        Ok(head) if head.tag == tag::BUNDLE && head.kind == Kind::Start => cursor.advance(head.len),
        // Whatever else is wrong with those bytes does not matter then.
        Ok(_) | Err(Error::Malformed { .. }) => {
            return Err(Error::NotABundle {
                location: cursor.location().shown(),
                looks_like: looks_like(cursor.in_hand()),
            })
        }
        Err(error) => return Err(error),
    }
    skip_to(&mut cursor, tag::BUNDLE_HEADER, Kind::Start)?;
    let offset = cursor.at();
    let header = take_whole(&mut cursor, MAX_HEADER_SIZE)?;
    if let Trust::Hash(expected) | Trust::HashAndSigned(expected, _) = trust {
        expected
            .verify(&header)
            .map_err(|found| Error::mismatch(Subject::Header, expected, &found))?;
    }
    let raw = Raw {
        header,
        header_at: offset,
        signatures: take_signatures(&mut cursor)?,
    };
    if let Trust::Signed(roots) | Trust::HashAndSigned(_, roots) = trust {
        roots.check(&raw.signatures()?, &raw.header)?;
    }
    let header = parse_header(&raw.header, offset)?;
    let head = skip_to(&mut cursor, tag::PAYLOADS, Kind::Start)?;
    cursor.advance(head.len);
    Ok(Opening {
        cursor,
        header,
        raw,
        next: 0,
        data_end: None,
    })
}

/// Reads the signatures, which may stand behind the header; moves up to the payloads.
fn take_signatures(cursor: &mut Cursor) -> Result<Option<(Vec<u8>, u64)>> {
    let mut signatures = None;
    loop {
        let head = peek(cursor)?;
        match (head.tag, head.kind) {
            (tag::PAYLOADS, Kind::Start) => return Ok(signatures),
            (tag::SIGNATURES, Kind::Start) => {
                let offset = cursor.at();
                let raw = take_whole(cursor, MAX_SIGNATURES_SIZE)?;
                if signatures.replace((raw, offset)).is_some() {
                    return Err(Error::Malformed {
                        offset,
                        reason: "there are two lists of signatures",
                    });
                }
            }
            _ => skip(cursor, &head)?,
        }
    }
}

impl Opening {
    /// The trusted header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The bytes that the trust in the bundle rests on.
    pub fn raw(&self) -> &Raw {
        &self.raw
    }

    /// The read position; behind the data that were opened last.
    pub fn cursor(&mut self) -> &mut Cursor {
        &mut self.cursor
    }

    /// Checks that the last payload that was opened ends behind its data.
    pub fn close(&mut self) -> Result<()> {
        if let Some(end) = self.data_end.take() {
            self.cursor.seek(end)?;
            let head = skip_to(&mut self.cursor, tag::PAYLOAD, Kind::End)?;
            self.cursor.advance(head.len);
        }
        Ok(())
    }

    /// Reads and checks the header of the next payload; `None` behind the last one.
    pub fn next_payload(&mut self) -> Result<Option<Opened>> {
        let Some(entry) = self.header.entries.get(self.next) else {
            return Ok(None);
        };
        let (number, expected) = (self.next, entry.header_digest);
        let start = self.data_end.unwrap_or(0);
        self.close()?;
        let cursor = &mut self.cursor;
        let head = skip_to(cursor, tag::PAYLOAD, Kind::Start)?;
        cursor.advance(head.len);
        skip_to(cursor, tag::PAYLOAD_HEADER, Kind::Start)?;
        let offset = cursor.at();
        let raw = take_whole(cursor, MAX_PAYLOAD_HEADER_SIZE)?;
        expected
            .verify(&raw)
            .map_err(|found| Error::mismatch(Subject::PayloadHeader(number), &expected, &found))?;
        let data = data_range(cursor)?;
        let payload = Payload {
            number,
            index: parse_payload_header(&raw, offset, data.clone())?,
            header_size: data.start - start,
            data: data.clone(),
        };
        self.next += 1;
        self.data_end = Some(data.end);
        Ok(Some(Opened {
            payload,
            in_hand: if cursor.jumps() {
                cursor.in_hand().to_vec()
            } else {
                Vec::new()
            },
        }))
    }
}

/// What a file that is no bundle probably is, by its first bytes.
fn looks_like(bytes: &[u8]) -> &'static str {
    let text = bytes.trim_ascii_start().to_ascii_lowercase();
    let signs: [(&[u8], &str); 10] = [
        (b"<!doctype html", HTML),
        (b"<html", HTML),
        (b"<?xml", "an XML document, such as a store's error message"),
        (b"{", "a JSON document"),
        (
            b"\xfd7zxz\0",
            "an xz file: unpacked it may be an image, not a bundle",
        ),
        (b"\x1f\x8b", "a gzip file"),
        (b"\x28\xb5\x2f\xfd", "a zstd file"),
        (b"hsqs", "a squashfs image, or a RAUC bundle"),
        (
            b"\x1a\xe5\x0c\x8e",
            "a block index, which goes behind --seed PATH=",
        ),
        (b"pk\x03\x04", "a zip file"),
    ];
    match signs.iter().find(|(sign, _)| text.starts_with(sign)) {
        Some((_, name)) => name,
        None if bytes.is_empty() => "an empty file",
        None if bytes.iter().all(|byte| *byte == 0) => "zeros: an image, or a hole",
        None if bytes.len() < 5 => "the very beginning of a file",
        None => "something else, perhaps an image",
    }
}

/// Finds the payload data, and moves to their first byte.
fn data_range(cursor: &mut Cursor) -> Result<Range<u64>> {
    loop {
        let head = peek(cursor)?;
        let (tag::PAYLOAD_DATA, Kind::Value(len)) = (head.tag, head.kind) else {
            skip(cursor, &head)?;
            continue;
        };
        cursor.advance(head.len);
        let start = cursor.at();
        return match start.checked_add(len) {
            _ if len > MAX_PAYLOAD_SIZE => Err(Error::Malformed {
                offset: start,
                reason: "the payload data are larger than allowed",
            }),
            Some(end) if cursor.size().is_none_or(|size| end <= size) => Ok(start..end),
            _ => Err(Error::Malformed {
                offset: start,
                reason: "the payload data run past the end of the bundle",
            }),
        };
    }
}

/// Where the end of the last payload must stand, given the end of its data.
pub fn closing_range(data_end: u64, bundle_size: Option<u64>) -> Range<u64> {
    let end = data_end.saturating_add(MAX_CLOSING_SIZE);
    data_end..bundle_size.map_or(end, |size| end.min(size))
}

/// Checks that a payload ends behind its data, with nothing in between that needs a newer reader.
/// What follows the last payload is nobody's business.
pub fn check_closing(bytes: &[u8], offset: u64) -> Result<()> {
    let mut at = 0;
    loop {
        let here = offset + at as u64;
        let rest = bytes.get(at..).unwrap_or_default();
        match stlv::head(rest, here)? {
            Scan::Done(head) if head.tag == tag::PAYLOAD && head.kind == Kind::End => return Ok(()),
            Scan::Done(head) if head.kind != Kind::End => {
                stlv::unknown(head.tag, here)?;
                match stlv::whole(rest, here, MAX_SKIPPED_SIZE)? {
                    Scan::Done(len) => at += len,
                    Scan::Need(_) => break,
                }
            }
            Scan::Done(_) => break,
            Scan::Need(_) => break,
        }
    }
    Err(Error::Malformed {
        offset: offset + at as u64,
        reason: "the last payload does not end behind its data",
    })
}

/// The next head, without moving.
fn peek(cursor: &mut Cursor) -> Result<Head> {
    let offset = cursor.at();
    let mut need = 5;
    loop {
        let bytes = cursor.want(need)?;
        match stlv::head(bytes, offset)? {
            Scan::Done(head) => return Ok(head),
            Scan::Need(more) if bytes.len() < need => {
                debug_assert!(more > bytes.len());
                return Err(cut_short(offset));
            }
            Scan::Need(more) => need = more,
        }
    }
}

/// Moves over unknown optional atoms to the head of the given tag, without moving over it.
fn skip_to(cursor: &mut Cursor, tag: Tag, kind: Kind) -> Result<Head> {
    loop {
        let head = peek(cursor)?;
        if head.tag == tag && head.kind == kind {
            return Ok(head);
        }
        skip(cursor, &head)?;
    }
}

/// Moves over an atom that is not expected here, if that is allowed.
fn skip(cursor: &mut Cursor, head: &Head) -> Result<()> {
    if head.kind == Kind::End {
        return Err(Error::Malformed {
            offset: cursor.at(),
            reason: "a segment ends too early",
        });
    }
    stlv::unknown(head.tag, cursor.at())?;
    let len = want_whole(cursor, MAX_SKIPPED_SIZE)?;
    if cursor.pass_over(len) {
        Ok(())
    } else {
        Err(Error::Malformed {
            offset: cursor.at(),
            reason: "there are more unknown atoms than are passed over",
        })
    }
}

fn take_whole(cursor: &mut Cursor, limit: usize) -> Result<Vec<u8>> {
    let len = want_whole(cursor, limit)?;
    let raw = cursor.in_hand().get(..len).unwrap_or_default().to_vec();
    cursor.advance(len);
    Ok(raw)
}

/// Gets all of the atom at the read position in hand; returns its size.
fn want_whole(cursor: &mut Cursor, limit: usize) -> Result<usize> {
    let offset = cursor.at();
    let mut need = 5;
    loop {
        let bytes = cursor.want(need)?;
        match stlv::whole(bytes, offset, limit)? {
            Scan::Done(len) => return Ok(len),
            Scan::Need(_) if bytes.len() < need => return Err(cut_short(offset)),
            Scan::Need(more) => need = more,
        }
    }
}

fn cut_short(offset: u64) -> Error {
    Error::Malformed {
        offset,
        reason: "the bundle is cut short",
    }
}
