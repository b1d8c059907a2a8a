//! Where an image is cut into blocks: the `fixed-K` and `casync-K` chunkers.
//!
//! A payload's own blocks are given by its index and never re-cut. The chunker is for local data:
//! scanning a seed finds the blocks of a bundle only when it cuts as the bundler did.
//!
//! ```text
//! fixed-K    blocks of K KiB, the last one shorter
//! casync-K   min = K KiB / 4, avg = K KiB, max = K KiB * 4; a block of n >= min bytes ends
//!            when n = max or when the buzhash h of its last 48 bytes has h mod d = d - 1
//! ```
//!
//! The discriminator `d` comes from the average in IEEE double arithmetic. Each block starts
//! afresh: no hash state crosses a border, so the first `min - 48` bytes are never looked at. That
//! also makes the borders re-synchronise after an insertion, and lets a scan be split among
//! threads (see `scan.rs`).
//!
//! The hash moves on by one byte in two cycles, because each step needs the one before. So it takes
//! `STRIDE` steps at once, of which all but that chain can be done side by side, and asks only
//! then whether there was a border among them. Where all bytes are the same (blank media, holes),
//! the hash stands still, and nothing is computed at all.

use std::fmt;

/// Window of the rolling hash in bytes.
const WINDOW: usize = 48;

const KIB: u32 = 1024;

/// Steps of the rolling hash between two looks at whether there was a border.
const STRIDE: usize = 8;

/// The 256 words of casync's buzhash.
#[rustfmt::skip]
static TABLE: [u32; 256] = [
    0x458b_e752, 0xc107_48cc, 0xfbbc_dbb8, 0x6ded_5b68, 0xb10a_82b5, 0x20d7_5648, 0xdfc5_665f, 0xa842_8801,
    0x7ebf_5191, 0x8411_35c7, 0x65cc_53b3, 0x280a_597c, 0x16f6_0255, 0xc78c_bc3e, 0x2944_15f5, 0xb938_d494,
    0xec85_c4e6, 0xb7d3_3edc, 0xe549_b544, 0xfded_a5aa, 0x882b_f287, 0x3116_737c, 0x0556_9956, 0xe8cc_1f68,
    0x0806_ac5e, 0x22a1_4443, 0x1529_7e10, 0x50d0_90e7, 0x4ba6_0f6f, 0xefd9_f1a7, 0x5c5c_885c, 0x8248_2f93,
    0x9bfd_7c64, 0x0b3e_7276, 0xf268_8e77, 0x8fad_8abc, 0xb050_9568, 0xf1ad_a29f, 0xa53e_fdfe, 0xcb2b_1d00,
    0xf2a9_e986, 0x6463_432b, 0x9509_4051, 0x5a22_3ad2, 0x9be8_401b, 0x61e5_79cb, 0x1a55_6a14, 0x5840_fdc2,
    0x9261_ddf6, 0xcde0_02bb, 0x5243_2bb0, 0xbf17_373e, 0x7b7c_222f, 0x2955_ed16, 0x9f10_ca59, 0xe840_c4c9,
    0xccab_d806, 0x1454_3f34, 0x1462_417a, 0x0d4a_1f9c, 0x087e_d925, 0xd7f8_f24c, 0x7338_c425, 0xcf86_c8f5,
    0xb191_65cd, 0x9891_c393, 0x3253_84ac, 0x0308_459d, 0x8614_1d7e, 0xc922_116a, 0xe2ff_a6b6, 0x53f5_2aed,
    0x2cd8_6197, 0xf5b9_f498, 0xbf31_9c8f, 0xe041_1fae, 0x977e_b18c, 0xd877_0976, 0x9833_466a, 0xc674_df7f,
    0x8c29_7d45, 0x8ca4_8d26, 0xc49e_d8e2, 0x7344_f874, 0x556f_79c7, 0x6b25_eaed, 0xa03e_2b42, 0xf68f_66a4,
    0x8e8b_09a2, 0xf2e0_e62a, 0x0d3a_9806, 0x9729_e493, 0x8c72_b0fc, 0x160b_94f6, 0x450e_4d3d, 0x7a32_0e85,
    0xbef8_f0e1, 0x21d7_3653, 0x4e3d_977a, 0x1e7b_3929, 0x1cc6_c719, 0xbe47_8d53, 0x8d75_2809, 0xe6d8_c2c6,
    0x275f_0892, 0xc8ac_c273, 0x4cc2_1580, 0xecc4_a617, 0xf5f7_be70, 0xe795_248a, 0x375a_2fe9, 0x4255_70b6,
    0x8898_dcf8, 0xdc2d_97c4, 0x0106_114b, 0x364d_c22f, 0x1e0c_ad1f, 0xbe63_803c, 0x5f69_fac2, 0x4d5a_fa6f,
    0x1bc0_dfb5, 0xfb27_3589, 0x0ea4_7f7b, 0x3c1c_2b50, 0x21b2_a932, 0x6b12_23fd, 0x2fe7_06a8, 0xf9bd_6ce2,
    0xa268_e64e, 0xe987_f486, 0x3eac_f563, 0x1ca2_018c, 0x65e1_8228, 0x2207_360a, 0x57cf_1715, 0x34c3_7d2b,
    0x1f8f_3cde, 0x93b6_57cf, 0x31a0_19fd, 0xe69e_b729, 0x8bca_7b9b, 0x4c9d_5bed, 0x277e_beaf, 0xe0d8_f8ae,
    0xd150_821c, 0x3138_1871, 0xafc3_f1b0, 0x927d_b328, 0xe95e_ffac, 0x305a_47bd, 0x426b_a35b, 0x1233_af3f,
    0x686a_5b83, 0x50e0_72e5, 0xd9d3_bb2a, 0x8bef_c475, 0x487f_0de6, 0xc88d_ff89, 0xbd66_4d5e, 0x971b_5d18,
    0x63b1_4847, 0xd7d3_c1ce, 0x7f58_3cf3, 0x72cb_cb09, 0xc0d0_a81c, 0x7fa3_429b, 0xe915_8a1b, 0x225e_a19a,
    0xd8ca_9ea3, 0xc763_b282, 0xbb0c_6341, 0x020b_8293, 0xd4cd_299d, 0x58cf_a7f8, 0x91b4_ee53, 0x37e4_d140,
    0x95ec_764c, 0x30f7_6b06, 0x5ee6_8d24, 0x679c_8661, 0xa419_79c2, 0xf2b6_1284, 0x4fac_1475, 0x0adb_49f9,
    0x1972_7a23, 0x15a7_e374, 0xc43a_18d5, 0x3fb1_aa73, 0x342f_c615, 0x924c_0793, 0xbee2_d7f0, 0x8a27_9de9,
    0x4aa2_d70c, 0xe24d_d37f, 0xbe86_2c0b, 0x177c_22c2, 0x5388_e5ee, 0xcd8a_7510, 0xf901_b4fd, 0xdbc1_3dbc,
    0x6c0b_ae5b, 0x64ef_e8c7, 0x48b0_2079, 0x8033_1a49, 0xca3d_8ae6, 0xf354_6190, 0xfed7_108b, 0xc49b_941b,
    0x32ba_f4a9, 0xeb83_3a4a, 0x88a3_f1a5, 0x3a91_ce0a, 0x3cc2_7da1, 0x7112_e684, 0x4a30_96b1, 0x3794_574c,
    0xa3c8_b6f3, 0x1d21_3941, 0x6e0a_2e00, 0x2334_79f1, 0x0f4c_d82f, 0x6093_edd2, 0x5d7d_209e, 0x464f_e319,
    0xd4dc_ac9e, 0x0db8_45cb, 0xfb5e_4bc3, 0xe025_6ce1, 0x09fb_4ed1, 0x0914_be1e, 0xa5bd_b2c3, 0xc6eb_57bb,
    0x3032_0350, 0x3f39_7e91, 0xa677_91bc, 0x86bc_0e2c, 0xefa0_a7e2, 0xe9ff_7543, 0xe733_612c, 0xd185_897b,
    0x329e_5388, 0x91dd_236b, 0x2ecb_0d93, 0xf4d8_2a3d, 0x35b5_c03f, 0xe4e6_06f0, 0x05b2_1843, 0x37b4_5964,
    0x5eff_22f4, 0x6027_f4cc, 0x7717_8b3c, 0xae50_7131, 0x7bf7_cabc, 0xf9c1_8d66, 0x593a_de65, 0xd95d_df11,
];

/// What a byte has become in the hash when it leaves the window: turned by 48 bits, that is by 16.
static LEAVING: [u32; 256] = {
    let mut table = TABLE;
    let mut at = 0;
    while at < table.len() {
        table[at] = table[at].rotate_left(16);
        at += 1;
    }
    table
};

/// The hash with the window moved by one byte.
fn roll(hash: u32, old: u8, new: u8) -> u32 {
    hash.rotate_left(1) ^ (LEAVING[usize::from(old)] ^ TABLE[usize::from(new)])
}

/// Whether all bytes are the same.
pub fn is_uniform(bytes: &[u8]) -> bool {
    let Some(first) = bytes.first() else {
        return true;
    };
    let differ = |piece: &[u8]| piece.iter().fold(0, |differ, byte| differ | (byte ^ first)) != 0;
    // A piece that fits into a few registers is looked at without a branch.
    let (pieces, rest) = bytes.as_chunks::<64>();
    !differ(rest) && !pieces.iter().any(|piece| differ(piece))
}

/// A parsed chunker: what a bundle or index names as `fixed-64`, `casync-64` and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunker {
    kind: Kind,
    /// The K of the name; 1 to 65,535.
    kib: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Fixed,
    Casync,
}

impl Chunker {
    /// Parses `fixed-K` or `casync-K` with K from 1 to 65,535.
    pub fn parse(name: &str) -> Option<Self> {
        let (kind, kib) = name.split_once('-')?;
        let kind = match kind {
            "fixed" => Kind::Fixed,
            "casync" => Kind::Casync,
            _ => return None,
        };
        if kib.is_empty() || !kib.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        match kib.parse() {
            Ok(0) | Err(_) => None,
            Ok(kib) => Some(Self { kind, kib }),
        }
    }

    /// True for `fixed-K`: every block but the last has the same size.
    pub fn is_fixed(self) -> bool {
        self.kind == Kind::Fixed
    }

    /// The largest block, in bytes.
    pub fn max_size(self) -> u32 {
        match self.kind {
            Kind::Fixed => u32::from(self.kib) * KIB,
            Kind::Casync => u32::from(self.kib) * KIB * 4,
        }
    }

    /// The smallest block that is not the last one, in bytes.
    pub fn min_size(self) -> u32 {
        match self.kind {
            Kind::Fixed => u32::from(self.kib) * KIB,
            Kind::Casync => u32::from(self.kib) * KIB / 4,
        }
    }

    /// The cutter for this chunker.
    pub fn cutter(self) -> Cutter {
        let average = u32::from(self.kib) * KIB;
        Cutter {
            min: self.min_size() as usize,
            max: self.max_size() as usize,
            test: match self.kind {
                Kind::Fixed => None,
                Kind::Casync => Some(BorderTest::new(discriminator(average))),
            },
        }
    }
}

/// `casync-64`, as with the reference.
impl Default for Chunker {
    fn default() -> Self {
        Self {
            kind: Kind::Casync,
            kib: 64,
        }
    }
}

impl fmt::Display for Chunker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Fixed => "fixed",
            Kind::Casync => "casync",
        };
        write!(f, "{kind}-{}", self.kib)
    }
}

/// casync's discriminator for an average block size in bytes. The order of operations matters:
/// the result must be that of the reference to the last bit.
fn discriminator(average: u32) -> u32 {
    let avg = f64::from(average);
    let exact = avg / ((-1.428_888_52e-7 * avg) + 1.332_375_15);
    // `as` cuts toward zero and saturates, which is what the reference does.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let cut = exact as u32;
    cut.clamp(average / 4, average * 4)
}

/// The border rule `h mod d == d - 1`, as a test that `h + 1` is divisible by `d`.
///
/// One multiplication instead of a division: with `m = ceil(2^64 / d)`, a 32-bit `n` is divisible
/// by `d` exactly if `n * m mod 2^64 < m`.
#[derive(Clone, Copy, Debug)]
struct BorderTest {
    multiplier: u64,
    /// `h = 2^32 - 1` would make `h + 1` wrap; its answer is kept apart.
    at_wrap: bool,
}

impl BorderTest {
    fn new(d: u32) -> Self {
        Self {
            multiplier: (u64::MAX / u64::from(d)) + 1,
            at_wrap: u32::MAX % d == d - 1,
        }
    }

    fn is_border(self, hash: u32) -> bool {
        match hash.wrapping_add(1) {
            0 => self.at_wrap,
            next => u64::from(next).wrapping_mul(self.multiplier) < self.multiplier,
        }
    }

    /// True for every border, and for one hash that may be none: without the case apart.
    fn may_be_border(self, hash: u32) -> bool {
        u64::from(hash.wrapping_add(1)).wrapping_mul(self.multiplier) < self.multiplier
    }
}

/// Cuts a stream of bytes, one block at a time.
#[derive(Clone, Copy, Debug)]
pub struct Cutter {
    min: usize,
    max: usize,
    /// `None` for fixed blocks.
    test: Option<BorderTest>,
}

impl Cutter {
    /// The largest block in bytes: with so many bytes at hand, [`Cutter::cut`] always decides.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Size of the block that starts at the first byte of `bytes`.
    ///
    /// `bytes` must hold at least [`Cutter::max`] bytes or all that is left of the image; the
    /// result is `bytes.len()` when the image ends before a border. Zero only for no bytes.
    pub fn cut(&self, bytes: &[u8]) -> usize {
        let end = bytes.len().min(self.max);
        let Some(test) = self.test else { return end };
        // The window that ends at the smallest possible border. min >= 256 > WINDOW for every K.
        let Some((_, from_window)) = bytes
            .get(..end)
            .and_then(|block| block.split_at_checked(self.min - WINDOW))
        else {
            return end;
        };
        let Some((window, rest)) = from_window.split_at_checked(WINDOW) else {
            return end;
        };
        let mut hash = window.iter().fold(0u32, |hash, byte| {
            hash.rotate_left(1) ^ TABLE[usize::from(*byte)]
        });
        if test.is_border(hash) {
            return self.min;
        }
        if is_uniform(from_window) {
            return end;
        }
        let mut taken = 0;
        let (old, _) = from_window.as_chunks::<STRIDE>();
        let (new, _) = rest.as_chunks::<STRIDE>();
        for (old, new) in old.iter().zip(new) {
            let before = hash;
            let mut may_be_border = false;
            for (old, new) in old.iter().zip(new) {
                hash = roll(hash, *old, *new);
                may_be_border |= test.may_be_border(hash);
            }
            if may_be_border {
                hash = before;
                break;
            }
            taken += STRIDE;
        }
        // Which of them it was; and what is shorter than a stride.
        let old = from_window.iter().skip(taken);
        for (old, new) in old.zip(rest.iter().skip(taken)) {
            hash = roll(hash, *old, *new);
            taken += 1;
            if test.is_border(hash) {
                return self.min + taken;
            }
        }
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_names() {
        for name in ["fixed-1", "fixed-65535", "casync-64"] {
            assert_eq!(
                Chunker::parse(name).map(|c| c.to_string()).as_deref(),
                Some(name)
            );
        }
        assert_eq!(Chunker::parse("fixed-064"), Chunker::parse("fixed-64"));
        for name in [
            "",
            "fixed",
            "fixed-",
            "fixed-0",
            "casync-0",
            "fixed-65536",
            "rabin-1",
            "fixed-+1",
            "fixed-1k",
            "casync--1",
        ] {
            assert_eq!(Chunker::parse(name), None, "{name}");
        }
    }

    #[test]
    fn discriminators_are_those_of_the_reference() {
        for (kib, d) in [
            (1, 768),
            (4, 3075),
            (8, 6153),
            (16, 12318),
            (32, 24680),
            (64, 49535),
            (128, 99777),
            (256, 202_440),
            (512, 416_942),
            (1024, 886_711),
            (4096, 5_721_670),
            (9106, 37_298_176),
            (9107, 2_331_392),
            (65535, 16_776_960),
        ] {
            assert_eq!(discriminator(kib * 1024), d, "casync-{kib}");
        }
    }

    #[test]
    fn border_test_is_the_modulo_rule() {
        let mut hash = 1u32;
        for d in [2, 3, 768, 49535, 37_298_176, u32::MAX] {
            let test = BorderTest::new(d);
            for _ in 0..20_000 {
                hash = hash.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let near = (hash / d).wrapping_mul(d).wrapping_add(d - 1);
                for h in [hash, near, 0, d - 1, u32::MAX, u32::MAX - 1] {
                    let border = h % d == d - 1;
                    assert_eq!(test.is_border(h), border, "h {h} d {d}");
                    let may_be = border || h == u32::MAX;
                    assert_eq!(test.may_be_border(h), may_be, "h {h} d {d}");
                }
            }
        }
    }

    /// The rule as format texts state it, byte by byte.
    fn slow_cut(chunker: Chunker, bytes: &[u8]) -> usize {
        let d = discriminator(u32::from(chunker.kib) * KIB);
        for n in chunker.min_size() as usize..=bytes.len() {
            let window = &bytes[n - WINDOW..n];
            let hash = window.iter().enumerate().fold(0u32, |hash, (i, byte)| {
                hash ^ TABLE[usize::from(*byte)].rotate_left(47 - u32::try_from(i).expect("48"))
            });
            if n >= chunker.max_size() as usize || hash % d == d - 1 {
                return n;
            }
        }
        bytes.len()
    }

    #[test]
    fn cuts_as_the_rule_says() {
        let chunker = Chunker::parse("casync-1").expect("a chunker");
        let cutter = chunker.cutter();
        let mut state = 7u32;
        let mut image: Vec<u8> = (0..60_000)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect();
        image.extend([0; 10_000]);
        let mut at = 0;
        let mut blocks = 0;
        while at < image.len() {
            let rest = &image[at..];
            let size = cutter.cut(rest);
            assert_eq!(size, slow_cut(chunker, rest), "at {at}");
            at += size;
            blocks += 1;
        }
        assert!(blocks > 40);
        assert_eq!(cutter.cut(&[]), 0);
        for len in [1, 47, 48, 255, 256, 257] {
            assert_eq!(
                cutter.cut(&vec![9; len]),
                len.min(slow_cut(chunker, &vec![9; len]))
            );
        }
    }

    #[test]
    fn uniform_bytes_are_cut_by_the_same_rule() {
        for kib in [1, 2, 3, 7] {
            let chunker = Chunker::parse(&format!("casync-{kib}")).expect("a chunker");
            for byte in 0..=u8::MAX {
                // With the rest of the block, and with something else behind it or in it.
                let mut bytes = vec![byte; chunker.max_size() as usize + 1];
                assert!(is_uniform(&bytes));
                for at in [0, 300, bytes.len() - 2] {
                    let cut = chunker.cutter().cut(&bytes);
                    assert_eq!(cut, slow_cut(chunker, &bytes), "{chunker} {byte} {at}");
                    bytes[at] ^= 0x80;
                    assert!(!is_uniform(&bytes), "{at}");
                }
            }
        }
        assert!(is_uniform(&[]) && is_uniform(&[7]) && !is_uniform(&[7, 8]));
    }

    #[test]
    fn fixed_blocks_end_where_they_must() {
        let cutter = Chunker::parse("fixed-1").expect("a chunker").cutter();
        assert_eq!(cutter.cut(&[1; 3000]), 1024);
        assert_eq!(cutter.cut(&[1; 1024]), 1024);
        assert_eq!(cutter.cut(&[1; 1000]), 1000);
        assert_eq!(cutter.cut(&[]), 0);
    }
}
