//! The repository tests itself: who may use what, where output and panics may be, that versions
//! agree. What the crate's documentation says of its structure cannot rot as long as this passes.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Lines of a file without its tests.
const MAX_LINES: usize = 900;

/// Which file of `src` may name which other one. Things first, then stages, then what is around
/// them. A new file gets a line here, and with it a place in the picture.
const IMPORTS: [(&str, &[&str]); 44] = [
    // Things: plain values, formats, and the outside world. None knows of a stage,
    ("hash", &[]),
    ("error", &["hash"]),
    ("chunker", &[]),
    ("stlv", &["error"]),
    ("xz", &[]),
    ("bundle", &["chunker", "error", "hash"]),
    (
        "rugix",
        &["bundle", "chunker", "error", "hash", "stlv", "xz"],
    ),
    ("clock", &[]),
    ("trust", &["clock", "error", "rugix"]),
    ("proxy", &[]),
    ("tls", &["clock"]),
    ("ahead", &[]),
    ("connect", &["ahead", "proxy", "tls"]),
    ("http", &["ahead", "clock", "connect", "proxy"]),
    ("busy", &[]),
    ("device", &["busy", "error", "hash"]),
    ("scan", &["chunker"]),
    ("output", &["error"]),
    ("image", &["bundle", "chunker", "error", "hash", "scan"]),
    ("terminal", &[]),
    ("notify", &["output"]),
    ("report", &["error", "http", "output", "terminal"]),
    ("work", &[]),
    (
        "console",
        &["error", "notify", "report", "terminal", "work"],
    ),
    ("link", &[]),
    ("old", &["scan"]),
    ("retry", &["error", "http"]),
    ("ordered", &["error", "http", "retry"]),
    // but for this: a range is completed in one place alone, also while a header is read.
    ("remote", &["error", "fetch", "http", "ordered", "retry"]),
    // Stages: things, and of earlier stages what they give.
    (
        "open",
        &[
            "bundle", "error", "hash", "remote", "rugix", "stlv", "trust",
        ],
    ),
    (
        "seed",
        &[
            "bundle", "busy", "chunker", "device", "error", "hash", "old", "output", "report",
            "rugix", "scan",
        ],
    ),
    ("plan", &["bundle", "old", "seed"]),
    ("fetch", &["error", "http", "retry"]),
    ("unpack", &["bundle", "fetch", "hash", "plan", "seed", "xz"]),
    (
        "write",
        &[
            "bundle", "device", "error", "fetch", "hash", "old", "plan", "remote", "report",
            "scan", "seed", "unpack", "xz",
        ],
    ),
    (
        "readback",
        &["bundle", "device", "error", "hash", "seed", "write", "xz"],
    ),
    // The one that sees all stages, but no bytes of a format.
    (
        "install",
        &[
            "bundle", "busy", "device", "error", "fetch", "hash", "http", "link", "old", "open",
            "output", "plan", "readback", "remote", "report", "retry", "rugix", "seed", "terminal",
            "unpack", "write",
        ],
    ),
    // It only compares.
    (
        "verify",
        &[
            "bundle", "device", "error", "hash", "http", "install", "open", "readback", "remote",
            "report",
        ],
    ),
    (
        "inspect",
        &["bundle", "error", "hash", "http", "open", "remote", "trust"],
    ),
    // Around them: the tools that make indexes and bundles, and the command line.
    (
        "index",
        &[
            "chunker", "error", "hash", "image", "output", "rugix", "work",
        ],
    ),
    (
        "pack",
        &[
            "chunker", "error", "hash", "image", "output", "rugix", "scan", "stlv", "terminal",
            "work",
        ],
    ),
    (
        "sign",
        &[
            "error", "hash", "http", "open", "output", "remote", "rugix", "stlv", "trust",
        ],
    ),
    (
        "estimate",
        &[
            "bundle", "chunker", "error", "hash", "image", "install", "link", "old", "open",
            "output", "pack", "plan", "remote", "rugix", "scan", "seed", "terminal", "work", "xz",
        ],
    ),
    (
        "args",
        &[
            "chunker", "clock", "connect", "console", "error", "estimate", "hash", "http", "index",
            "inspect", "install", "link", "open", "output", "pack", "proxy", "remote", "retry",
            "seed", "sign", "tls", "trust", "verify",
        ],
    ),
];

const STAGES: [&str; 11] = [
    "open", "seed", "plan", "fetch", "unpack", "write", "readback", "install", "verify", "inspect",
    "args",
];

/// The only files that may name a crate, for all crates but `log`.
const CRATES: [(&str, &[&str]); 21] = [
    ("argh", &["args"]),
    ("crc", &["xz"]),
    // The others only wait on what fetch gives them.
    ("crossbeam_channel", &["fetch", "hash", "retry", "ordered"]),
    ("der", &["trust"]),
    ("ed25519_dalek", &["trust/key"]),
    ("liblzma", &["pack/encoder"]),
    ("lzma_rs", &["xz/lzma2"]),
    ("lzma_rust2", &["xz/lzma2"]),
    ("p256", &["trust/key"]),
    ("p384", &["trust/key"]),
    // In tls it is the part of rustls by that name.
    ("ring", &["hash/with_ring", "trust/key", "tls", "xz"]),
    ("rustix", &["console", "device", "output"]),
    ("rustls", &["tls"]),
    ("rustls_pki_types", &["trust/with"]),
    (
        "serde",
        &[
            "report",
            "console",
            "pack",
            "inspect",
            "index",
            "estimate",
            "install/planned",
        ],
    ),
    ("serde_json", &["console", "report", "pack"]),
    ("sha2", &["hash/with_sha2", "xz"]),
    ("signal_hook", &["main"]),
    ("socket2", &["connect"]),
    ("toml", &["pack/manifest"]),
    // The second one only what ureq lets others put below it.
    ("ureq", &["http", "connect"]),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A file of `src`: its path below without extension, its text without its tests, and of that the code.
struct Source {
    name: String,
    text: String,
    code: String,
}

impl Source {
    fn all() -> Vec<Self> {
        let mut all: Vec<_> = rust(&root().join("src")).iter().map(Self::read).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        assert!(all.len() > 20, "where are the others?");
        all
    }

    fn read(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        let mut text = fs::read_to_string(path).unwrap();
        let heads = text.match_indices("\n#[cfg(test)]\n").map(|(at, _)| at);
        // There may be more attributes in between.
        let mut heads = heads.filter(|at| {
            let mut lines = text[*at..].lines().skip(2);
            lines.find(|line| !line.starts_with("#[")) == Some("mod tests {")
        });
        if let Some(tests) = heads.next() {
            text.truncate(tests);
        }
        let lines = text.lines().map(|line| match line.find("//") {
            // Not that of a URL.
            Some(at) if !line[..at].ends_with(':') => &line[..at],
            _ => line,
        });
        Self {
            name: {
                let path = path.strip_prefix(root().join("src")).unwrap();
                path.with_extension("").to_str().unwrap().to_owned()
            },
            code: lines.collect::<Vec<_>>().join("\n"),
            text,
        }
    }

    /// The module it belongs to: a file in a folder is a part of the module of that name.
    fn module(&self) -> &str {
        self.name.split('/').next().unwrap()
    }

    /// Whether it is one of these, or a part of one of them.
    fn is_of(&self, names: &[&str]) -> bool {
        names.contains(&self.name.as_str()) || names.contains(&self.module())
    }

    /// Whether the code has this word, not as part of a longer one or behind another path.
    fn has(&self, word: &str) -> bool {
        self.code.match_indices(word).any(|(at, _)| {
            let before = self.code[..at].chars().next_back();
            !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':')
        })
    }

    /// The modules of the crate that the code names.
    fn imports(&self) -> BTreeSet<&str> {
        let parts = self.code.split("crate::").skip(1);
        parts
            .map(|part| {
                let end = part.find(|c: char| !c.is_alphanumeric() && c != '_');
                &part[..end.unwrap_or(part.len())]
            })
            .collect()
    }
}

/// All files below a folder.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// Those in Rust.
fn rust(folder: &Path) -> Vec<PathBuf> {
    let mut found = files(folder);
    found.retain(|path| path.extension().is_some_and(|ending| ending == "rs"));
    found
}

#[test]
fn imports_go_one_way() {
    for source in Source::all() {
        let name = source.module();
        if ["main", "lib"].contains(&name) {
            continue;
        }
        let line = IMPORTS.iter().find(|(file, _)| *file == name);
        let (_, allowed) = line.unwrap_or_else(|| panic!("{name}.rs has no place in IMPORTS"));
        for import in source.imports() {
            let right = allowed.contains(&import) || import == name;
            assert!(right, "{}.rs must not know of {import}.rs", source.name);
        }
    }
}

/// The table above keeps the rule that it stands for.
#[test]
fn things_do_not_import_stages() {
    let first_stage = IMPORTS.iter().position(|(name, _)| *name == "open");
    for (thing, imports) in &IMPORTS[..first_stage.unwrap()] {
        for stage in imports.iter().filter(|import| STAGES.contains(import)) {
            assert_eq!((*thing, *stage), ("remote", "fetch"));
        }
    }
    let names: Vec<_> = IMPORTS.iter().map(|(name, _)| *name).collect();
    for (name, imports) in IMPORTS {
        for import in imports {
            assert!(names.contains(import), "{name}: there is no {import}");
        }
    }
    // Later stages are known to none but install and args.
    for (stage, imports) in IMPORTS
        .iter()
        .filter(|(name, _)| STAGES[..5].contains(name))
    {
        let at = STAGES.iter().position(|name| name == stage).unwrap();
        let later = imports.iter().find(|import| STAGES[at..].contains(import));
        assert_eq!(later, None, "{stage}");
    }
}

#[test]
fn each_crate_has_its_owner() {
    let sources = Source::all();
    for (name, owners) in CRATES {
        for source in &sources {
            let named = source.has(&format!("{name}::"))
                || source.has(&format!("use {name};"))
                || source.has(&format!("use {name} as "));
            let owns = source.is_of(owners);
            assert!(owns || !named, "{}.rs must not use {name}", source.name);
        }
        let used = sources
            .iter()
            .any(|source| source.has(&format!("{name}::")));
        assert!(used, "nobody uses {name}");
    }
    let manifest = read("Cargo.toml");
    for line in section(&manifest, "[dependencies]") {
        let Some((name, _)) = line.split_once('=').filter(|_| !line.starts_with('#')) else {
            continue;
        };
        let name = name.trim().trim_end_matches(".workspace").replace('-', "_");
        // The facade is everybody's, and a part of ours is a module (IMPORTS).
        let everybodys = name == "log" || line.contains("path = ");
        let known = everybodys || CRATES.iter().any(|(known, _)| *known == name);
        assert!(known, "{name} has no owner in CRATES");
    }
}

fn section<'a>(manifest: &'a str, head: &str) -> Vec<&'a str> {
    let lines = manifest.lines().skip_while(|line| *line != head).skip(1);
    lines.take_while(|line| !line.starts_with('[')).collect()
}

/// One line above each dependency says why it is there.
#[test]
fn each_dependency_has_its_reason() {
    let manifest = read("Cargo.toml");
    let lines = section(&manifest, "[dependencies]");
    for pair in lines.windows(2) {
        if pair[1].contains(" = ") && !pair[1].starts_with('#') {
            let grouped = pair[1].starts_with("serde_json");
            assert!(pair[0].starts_with('#') || grouped, "{}: why?", pair[1]);
        }
    }
}

#[test]
fn only_the_console_speaks_and_only_main_exits() {
    for source in Source::all() {
        for (word, files) in [
            ("println!", &[][..]),
            ("eprintln!", &[]),
            ("print!", &[]),
            ("eprint!", &[]),
            ("dbg!", &[]),
            ("io::stdout", &["console"]),
            ("io::stderr", &["console"]),
            ("io::stdin", &["remote"]),
            ("process::exit", &["main"]),
            ("process::abort", &[]),
            ("ExitCode", &["main"]),
            // TERM says what kind of terminal there is.
            ("env::var", &["main", "args", "console"]),
        ] {
            let allowed = source.is_of(files);
            let found = source.code.contains(word);
            assert!(allowed || !found, "{word} in {}.rs", source.name);
        }
    }
}

#[test]
fn nothing_panics_on_purpose() {
    let macros = ["panic", "todo", "unimplemented", "unreachable"].map(|name| format!("{name}!("));
    let words = [".unwrap()", "unsafe {", "unsafe fn", "unsafe impl"].map(str::to_owned);
    for source in Source::all() {
        for word in macros.iter().chain(&words) {
            let found = source.code.contains(word);
            assert!(!found, "{word} in {}.rs", source.name);
        }
    }
    assert!(read("Cargo.toml").contains("unsafe_code = \"forbid\""));
}

#[test]
fn files_begin_with_what_they_are_for_and_end_in_time() {
    for source in Source::all() {
        let lines = source.text.lines().count();
        assert!(lines <= MAX_LINES, "{}.rs has {lines} lines", source.name);
        if source.name != "main" {
            let intro = source.text.lines().take_while(|l| l.starts_with("//!"));
            assert!(intro.count() >= 3, "{}.rs does not say enough", source.name);
        }
    }
    for folder in ["src", "tests/it"] {
        for path in rust(&root().join(folder)) {
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.starts_with("//!"), "{}", path.display());
        }
    }
    // A comment above each module of the tests says what belongs there.
    let main = read("tests/it/main.rs");
    let mut commented = false;
    for line in main.lines() {
        assert!(commented || !line.starts_with("mod "), "{line} does what?");
        commented = line.starts_with("// ") || commented && line.starts_with("#[");
    }
}

/// The value of a key of the package.
fn package<'a>(manifest: &'a str, key: &str) -> &'a str {
    let lines = section(manifest, "[package]");
    let value = lines.iter().find_map(|line| {
        let (name, value) = line.split_once(" = ")?;
        (name == key).then_some(value.trim_matches('"'))
    });
    value.unwrap_or_else(|| panic!("no {key}"))
}

#[test]
fn versions_agree() {
    let manifest = read("Cargo.toml");
    let version = package(&manifest, "version");
    let lock = read("Cargo.lock");
    let entry = format!("name = \"reflash\"\nversion = \"{version}\"\n");
    assert!(lock.contains(&entry), "Cargo.lock is of another version");

    let rust = package(&manifest, "rust-version");
    for path in ["README.md", "cross/README.md"] {
        let text = read(path);
        for (before, expected) in [
            ("Rust ", rust),
            ("reflash ", version),
            ("reflash-", version),
        ] {
            for (at, _) in text.match_indices(before) {
                let named = &text[at + before.len()..];
                let end = named.find(|c: char| !c.is_ascii_digit() && c != '.');
                let named = named[..end.unwrap_or(named.len())].trim_end_matches('.');
                if named.contains('.') {
                    assert_eq!(named, expected, "{path}: {before}");
                }
            }
        }
    }
}

#[test]
fn no_file_knows_the_machine_it_was_written_on() {
    let mut paths = vec![root().join("README.md"), root().join("Makefile")];
    for folder in ["src", "tests", "cross"] {
        paths.extend(files(&root().join(folder)));
    }
    // Put together, so that this file does not have them.
    let folders = ["work", "tmp", "root", "home"].map(|name| format!("/{name}"));
    for path in paths {
        // Bundles, images and the like are no text.
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        for folder in &folders {
            for (at, _) in text.match_indices(folder.as_str()) {
                let before = text[..at].chars().next_back();
                let after = text[at + folder.len()..].chars().next();
                // Part of a longer path, or of a longer name.
                let longer = before.is_some_and(|c| c.is_alphanumeric() || "_-.)}/~".contains(c))
                    || after.is_some_and(|c| c.is_alphanumeric() || "_-.".contains(c));
                assert!(longer, "{folder} in {}", path.display());
            }
        }
    }
}
