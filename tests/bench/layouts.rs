//! What is installed: images whose missing blocks lie in patterns that matter to an installer.
//!
//! All is made from numbers, the same on each run and machine. The bundles come from the maker of
//! the integration tests, which also says, independently of the product, what has to be fetched.

use std::fs;
use std::path::Path;

use crate::it::make_bundle::{
    block_index_with, hex, random_image, text_image, Bundle, Cuts, Hash, Payload, Random,
};

/// Which blocks the device lacks.
#[derive(Clone, Copy, Debug)]
enum Pattern {
    /// Each by itself, 2 to 6 blocks apart.
    Scattered,
    /// A few long runs.
    Runs,
    Alternating,
    All,
    Nothing,
    /// Run lengths and gaps as between two releases of a distribution: most runs are of one to four
    /// blocks, most bytes in long ones.
    Mixed,
}

/// A way to lack blocks, and how the image is cut and stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) name: &'static str,
    pattern: Pattern,
    chunker: &'static str,
    /// The preset. Only without compression is the processor out of the way.
    xz: Option<u32>,
    /// Blocks to fetch, in full and in quick mode.
    missing: [usize; 2],
}

pub(crate) const LAYOUTS: [Layout; 7] = [
    Layout {
        name: "scattered",
        pattern: Pattern::Scattered,
        chunker: "fixed-16",
        xz: None,
        missing: [2000, 500],
    },
    Layout {
        name: "alternating",
        pattern: Pattern::Alternating,
        chunker: "fixed-16",
        xz: None,
        missing: [2000, 500],
    },
    Layout {
        name: "runs",
        pattern: Pattern::Runs,
        chunker: "fixed-64",
        xz: None,
        missing: [640, 192],
    },
    Layout {
        name: "mixed",
        pattern: Pattern::Mixed,
        chunker: "fixed-16",
        xz: None,
        missing: [2500, 700],
    },
    Layout {
        name: "mixed, xz",
        pattern: Pattern::Mixed,
        chunker: "casync-64",
        xz: Some(1),
        missing: [1500, 500],
    },
    Layout {
        name: "all missing",
        pattern: Pattern::All,
        chunker: "fixed-64",
        xz: None,
        missing: [640, 192],
    },
    Layout {
        name: "nothing missing",
        pattern: Pattern::Nothing,
        chunker: "fixed-64",
        xz: None,
        missing: [640, 192],
    },
];

/// A layout made: its files lie in a folder under these names.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) image: Vec<u8>,
    pub(crate) bundle_hash: String,
    /// Whether there is a seed.
    pub(crate) seeded: bool,
    /// Bytes to fetch at least: headers with the index, and the missing blocks as stored.
    pub(crate) needed: u64,
    /// Ranges in which they lie, the headers not counted.
    pub(crate) runs: usize,
    /// Blocks to fetch.
    pub(crate) missing: usize,
}

pub(crate) const BUNDLE: &str = "new.rugixb";
pub(crate) const SEED: &str = "old.img";
pub(crate) const INDEX: &str = "old.rugix-block-index";

const HASH: Hash = Hash::Sha512_256;

impl Layout {
    /// Makes the image, writes its bundle to `www`, the seed and its block index to `folder`.
    pub(crate) fn make(&self, quick: bool, folder: &Path, www: &Path) -> Result<Scenario, String> {
        let mut random = Random::new(0x7265_666c_6173_6801);
        let missing = self
            .pattern
            .blocks(self.missing[usize::from(quick)], &mut random);
        let size = missing.len() * self.average();
        let image = match self.xz {
            None => random_image(size, random.next()),
            Some(_) => text_image(size, random.next()),
        };
        let blocks = Cuts::of(self.chunker).blocks(&image);
        // The chunker's blocks are not of the average size exactly: there may be some more.
        let missing: Vec<bool> = missing.into_iter().cycle().take(blocks.len()).collect();

        let mut payload = Payload::slot("system", image.clone())
            .chunker(self.chunker)
            .hash(HASH)
            .dedup();
        if let Some(preset) = self.xz {
            payload = payload.xz(preset);
        }
        let made = Bundle::of(payload).hash(HASH).make();
        let payload = &made.payloads[0];
        let had = blocks
            .iter()
            .zip(&missing)
            .filter(|(_, missing)| !**missing);
        let had = had.map(|(block, _)| hex(&HASH.digest(&image[block.clone()])));
        let runs = payload.missing(&had.collect());

        let write = |path: &Path, bytes: &[u8]| {
            fs::write(path, bytes).map_err(|error| format!("{}: {error}", path.display()))
        };
        write(&www.join(BUNDLE), &made.bytes)?;
        let seeded = !matches!(self.pattern, Pattern::All);
        if seeded {
            let mut seed = image.clone();
            for (block, _) in blocks.iter().zip(&missing).filter(|(_, missing)| **missing) {
                seed[block.clone()].copy_from_slice(&random.bytes(block.len()));
            }
            // With the borders of the image, so that nothing is missing but what should be.
            let ends = blocks.iter().map(|block| block.end).collect();
            let index = block_index_with(&seed, self.chunker, &Cuts::At(ends), HASH);
            write(&folder.join(SEED), &seed)?;
            write(&folder.join(INDEX), &index)?;
        }
        Ok(Scenario {
            needed: payload.data.start + runs.iter().map(|run| run.end - run.start).sum::<u64>(),
            runs: runs.len(),
            missing: missing.iter().filter(|missing| **missing).count(),
            bundle_hash: made.bundle_hash,
            seeded,
            image,
        })
    }

    fn average(&self) -> usize {
        let (_, kib) = self.chunker.split_once('-').unwrap_or_default();
        kib.parse::<usize>().unwrap_or_default() << 10
    }
}

impl Pattern {
    /// For each block of an image, whether it is missing; `count` are, give or take a run.
    fn blocks(self, count: usize, random: &mut Random) -> Vec<bool> {
        let mut blocks = Vec::new();
        let mut add = |missing: bool, count: usize| {
            blocks.resize(blocks.len() + count, missing);
        };
        match self {
            Self::Scattered => (0..count).for_each(|_| {
                add(false, 2 + random.below(5));
                add(true, 1);
            }),
            Self::Alternating => (0..count).for_each(|_| {
                add(false, 1);
                add(true, 1);
            }),
            Self::Runs => (0..4).for_each(|_| {
                add(false, count / 8);
                add(true, count / 4);
            }),
            Self::All => add(true, count),
            Self::Nothing => add(false, count),
            Self::Mixed => {
                // One long run is always there, as a kernel is.
                let mut run = 260;
                let mut made = 0;
                while made < count {
                    add(true, run);
                    made += run;
                    let (least, most) = match random.below(100) {
                        0..=43 => (1, 1),
                        44..=55 => (2, 2),
                        56..=64 => (3, 3),
                        65..=69 => (4, 4),
                        70..=79 => (5, 8),
                        80..=85 => (9, 16),
                        86..=96 => (17, 64),
                        _ => (65, 256),
                    };
                    run = least + random.below(most - least + 1);
                    add(
                        false,
                        match random.below(100) {
                            0..=49 => 1,
                            50..=79 => 2 + random.below(7),
                            80..=94 => 9 + random.below(24),
                            _ => 33 + random.below(64),
                        },
                    );
                }
            }
        }
        blocks
    }
}
