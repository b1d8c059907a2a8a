//! Where a system keeps the roots it trusts for bundles: this program's own folder, and the
//! reference's configuration file.
//!
//! Of that file one key is read, `roots` of the table `signatures`, a list of paths, in the ways in
//! which TOML lets one write it on lines of its own:
//!
//! ```toml
//! [signatures]
//! roots = ["/etc/rugix/root.crt", '/etc/rugix/next.crt']   # also over several lines
//! ```
//!
//! What speaks of `signatures` in another way is refused rather than passed over: an administrator
//! who named roots must not be told that there are none.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::{BadFile, Reason};
use crate::error::Result;

/// Most bytes of the configuration file, and most files in all.
const MAX_CONFIG: u64 = 256 << 10;
const MAX_FILES: usize = 64;

/// The files with roots that are configured below `etc`.
pub(super) fn files(etc: &Path) -> Result<Vec<PathBuf>, BadFile> {
    let mut files = folder(&etc.join("reflash/roots.d"))?;
    let config = etc.join("rugix/ctrl.toml");
    let bad = |reason: Reason| BadFile {
        path: config.clone(),
        reason,
    };
    let mut text = String::new();
    match File::open(&config) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(files),
        Err(error) => return Err(bad(error.to_string())),
        Ok(file) => {
            let read = file.take(MAX_CONFIG + 1).read_to_string(&mut text);
            read.map_err(|error| bad(error.to_string()))?;
            if text.len() as u64 > MAX_CONFIG {
                return Err(bad("it is larger than a configuration is".to_owned()));
            }
        }
    }
    files.extend(roots(&text).map_err(bad)?);
    Ok(files)
}

fn folder(path: &Path) -> Result<Vec<PathBuf>, BadFile> {
    let bad = |reason: Reason| BadFile {
        path: path.to_owned(),
        reason,
    };
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| bad(error.to_string()))?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| bad(error.to_string()))?.path();
        if path.extension().is_some_and(|extension| extension == "pem") {
            files.push(path);
        }
        if files.len() > MAX_FILES {
            return Err(bad("there are too many files in it".to_owned()));
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// The paths that `roots` of the table `signatures` lists.
fn roots(text: &str) -> Result<Vec<PathBuf>, Reason> {
    let odd =
        || "what it says of signatures is not understood: roots = [\"PATH\", …] is".to_owned();
    let mut found = None;
    let mut inside = false;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let line = line.trim();
        if let Some(head) = line.strip_prefix('[') {
            let name = head.split(']').next().unwrap_or_default().trim();
            inside = name == "signatures";
            if !inside
                && name
                    .trim_matches(['"', '\'', '['])
                    .starts_with("signatures")
            {
                return Err(odd());
            }
            continue;
        }
        let (key, value) = match line.split_once('=') {
            Some((key, value)) if !line.starts_with('#') => (key.trim(), value),
            _ => continue,
        };
        let wanted = match key.split('.').map(str::trim).collect::<Vec<_>>()[..] {
            ["roots"] => inside,
            ["signatures", "roots"] => !inside,
            // Such as an inline table.
            ["signatures", ..] | ["\"signatures\"", ..] if !inside => return Err(odd()),
            ["\"roots\"" | "'roots'"] if inside => return Err(odd()),
            _ => false,
        };
        if wanted {
            let mut list = value.to_owned();
            loop {
                match paths(&list).ok_or_else(odd)? {
                    List::Whole(paths) if found.is_none() => found = Some(paths),
                    List::Whole(_) => return Err(odd()),
                    List::Open => {
                        list.push('\n');
                        list.push_str(lines.next().ok_or_else(odd)?);
                        continue;
                    }
                }
                break;
            }
        }
    }
    Ok(found.unwrap_or_default())
}

enum List {
    Whole(Vec<PathBuf>),
    /// The closing bracket does not stand there.
    Open,
}

/// `["a", 'b'] # comment`, maybe over several lines; `None` if it is something else.
fn paths(text: &str) -> Option<List> {
    let mut rest = text.trim_start().strip_prefix('[')?;
    let mut paths = Vec::new();
    let mut separated = true;
    loop {
        rest = rest.trim_start();
        let Some(first) = rest.chars().next() else {
            return Some(List::Open);
        };
        rest = rest.get(first.len_utf8()..)?;
        match first {
            ']' => {
                let behind = rest.trim();
                return (behind.is_empty() || behind.starts_with('#'))
                    .then_some(List::Whole(paths));
            }
            '#' => rest = rest.split_once('\n').map_or("", |(_, rest)| rest),
            ',' if !separated => separated = true,
            '"' | '\'' if separated => {
                let (path, behind) = rest.split_once(first)?;
                // Escapes are for other texts than paths.
                if path.is_empty() || path.contains('\n') || (first == '"' && path.contains('\\')) {
                    return None;
                }
                paths.push(PathBuf::from(path));
                if paths.len() > MAX_FILES {
                    return None;
                }
                separated = false;
                rest = behind;
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_references_configuration_names_roots() {
        let listed = |text| {
            roots(text).map(|paths| {
                let shown = paths.iter().map(|path| path.display().to_string());
                shown.collect::<Vec<_>>().join(" ")
            })
        };
        for (text, expected) in [
            ("", ""),
            ("[signatures]\nroots = [\"/a\"]\n", "/a"),
            (
                "[signatures]\nroots = ['/a b', \"/c\",] # why\n[x]\nroots = 3\n",
                "/a b /c",
            ),
            (
                "[ signatures ] # x\n\n roots=[\n  '/a', # ]\n\n '/b'\n]\n",
                "/a /b",
            ),
            (
                "signatures.roots = [\"/a\"]\n[other]\nroots = ['/b']\n",
                "/a",
            ),
            (
                "# [signatures]\n# roots = ['/a']\n[boot-flow]\ntype = \"x=y\"\n",
                "",
            ),
            ("[signatures]\nroots = []\n", ""),
            ("[signatures]\nother = 1\n", ""),
        ] {
            assert_eq!(listed(text).as_deref(), Ok(expected), "{text}");
        }
        for odd in [
            "signatures = { roots = ['/a'] }\n",
            "[signatures]\nroots = '/a'\n",
            "[signatures]\nroots = ['/a'\n",
            "[signatures]\nroots = ['/a' '/b']\n",
            "[signatures]\nroots = [\"a\\u0041\"]\n",
            "[signatures]\nroots = ['/a']\nroots = ['/b']\n",
            "[signatures]\n\"roots\" = ['/a']\n",
            "[[signatures]]\nroots = ['/a']\n",
            "[\"signatures\"]\nroots = ['/a']\n",
            "[signatures]\nroots = ['/a'] x\n",
        ] {
            assert!(listed(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn roots_at_the_end_of_a_huge_file_are_not_overlooked() {
        let etc = tempfile::tempdir().expect("a folder");
        fs::create_dir(etc.path().join("rugix")).expect("a folder");
        let text = |padding: usize| {
            let padding = "#".repeat(padding);
            format!("{padding}\n[signatures]\nroots = ['/a']\n")
        };
        let config = etc.path().join("rugix/ctrl.toml");
        fs::write(&config, text(1000)).expect("written");
        assert_eq!(files(etc.path()).expect("read"), [PathBuf::from("/a")]);
        fs::write(&config, text(256 << 10)).expect("written");
        files(etc.path()).expect_err("refused");
    }
}
