//! A bundle on a server, and a folder for all that a run needs. What runs there are is for each file
//! to say.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;

use crate::make_bundle::{Bundle, Made, Payload};
use crate::server::Server;
use crate::util::{read_json, temp_dir};

pub struct Site {
    pub folder: TempDir,
    pub server: Server,
    pub made: Made,
}

impl Site {
    pub fn new(bundle: &Bundle) -> Self {
        let made = bundle.make();
        Self {
            folder: temp_dir(),
            server: Server::start([("/b", made.bytes.clone())]),
            made,
        }
    }

    pub fn of(payload: Payload) -> Self {
        Self::new(&Bundle::of(payload))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// What `--report` wrote to the file of that name.
    pub fn report(&self) -> Value {
        read_json(self.path("report"))
    }
}
