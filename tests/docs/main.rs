//! Writes the manual page and the completions of shells into a folder: `make docs`.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use reflash::internal::args::manual::{completion, man, Shell};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from);
    let folder = folder.ok_or("give the folder to write to")?;
    fs::create_dir_all(&folder)?;
    for (name, text) in [
        ("reflash.1", man()),
        ("reflash.bash", completion(Shell::Bash)),
        ("_reflash", completion(Shell::Zsh)),
        ("reflash.fish", completion(Shell::Fish)),
    ] {
        fs::write(folder.join(name), text)?;
    }
    Ok(())
}
