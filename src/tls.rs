//! What https needs: certificates and keys from PEM files, and a session over somebody else's
//! socket.
//!
//! The only user of rustls, and the only file that the cargo feature `tls` changes: without it a
//! session cannot be had, and nothing else notices. A system without certificates and a clock that
//! is wrong are usual where this program runs; both end in words that say what to do.
//!
//! | roots | if |
//! |---|---|
//! | the files of `--cacert` | given |
//! | else the file of `SSL_CERT_FILE` | set |
//! | else the first bundle where systems keep theirs | there is one |
//!
//! Certificates are judged by [`crate::clock`], which is never earlier than the build.

use std::io;
use std::path::PathBuf;

#[cfg(feature = "tls")]
pub use with::{Session, Tls};
#[cfg(not(feature = "tls"))]
pub use without::{Session, Tls};

/// The files that the user names.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// Authorities to trust, in place of the system's.
    pub authorities: Vec<PathBuf>,
    /// The system's authorities, where the environment says where they are.
    pub system: Option<PathBuf>,
    /// The client certificate and its chain.
    pub certificate: Option<PathBuf>,
    /// Its key; without it, the key lies with the certificate.
    pub key: Option<PathBuf>,
}

/// Why there is no session, or no more.
#[derive(Debug)]
pub enum Problem {
    /// A file cannot be used.
    File {
        /// Which.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// This build cannot do it.
    Unsupported(&'static str),
    /// It will be the same next time.
    Lasting(String),
    /// It may go better next time.
    Passing(String),
    /// The socket's own failure.
    Io(io::Error),
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

#[cfg(not(feature = "tls"))]
mod without {
    use super::{Files, Problem};
    use crate::clock::Clock;
    use std::io::{Read, Write};

    const NONE: Problem = Problem::Unsupported("this build of reflash has no https");

    /// No TLS.
    #[derive(Debug, Default)]
    pub struct Tls(());

    impl Tls {
        /// Nothing to configure.
        pub fn new(_: Files, _: Clock) -> Self {
            Self(())
        }

        /// Fails.
        pub fn prepare(&self) -> Result<(), Problem> {
            Err(NONE)
        }

        /// Fails.
        pub(crate) fn session(&self, _: &str) -> Result<Session, Problem> {
            Err(NONE)
        }
    }

    /// There is none.
    #[derive(Debug)]
    pub enum Session {}

    impl Session {
        /// Never called, as all below.
        pub fn handshake(&mut self, _: &mut (impl Read + Write)) -> Result<(), Problem> {
            match *self {}
        }

        /// Never called.
        pub fn read(
            &mut self,
            _: &mut (impl Read + Write),
            _: &mut [u8],
        ) -> Result<usize, Problem> {
            match *self {}
        }

        /// Never called.
        pub fn write_all(&mut self, _: &mut (impl Read + Write), _: &[u8]) -> Result<(), Problem> {
            match *self {}
        }

        /// Never called.
        pub fn is_quiet(&self) -> bool {
            match *self {}
        }
    }
}

#[cfg(feature = "tls")]
mod with {
    use std::fmt;
    use std::fs;
    use std::io::{self, Read, Write};
    use std::path::{Path, PathBuf};
    use std::sync::{Arc, OnceLock};
    use std::time::Duration;

    use rustls::crypto::ring;
    use rustls::pki_types::pem::{self, PemObject};
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
    use rustls::time_provider::TimeProvider;
    use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection};
    use rustls::{Error, RootCertStore};

    use super::{Files, Problem};
    use crate::clock::{Clock, Now, Time};

    /// Where systems keep the authorities they trust.
    const SYSTEM_ROOTS: [&str; 6] = [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
        "/etc/ssl/ca-bundle.pem",
        "/etc/ssl/cert.pem",
        "/usr/share/ssl/certs/ca-bundle.crt",
    ];

    /// Most bytes of a PEM file: all roots of the web are a quarter of a megabyte.
    const MAX_PEM: u64 = 8 << 20;

    /// Makes sessions. One for all clients of a run: what a server gave to resume a session with is
    /// kept here, and files are read once, when they are needed.
    #[derive(Default)]
    pub struct Tls {
        files: Files,
        clock: Clock,
        config: OnceLock<Arc<ClientConfig>>,
    }

    impl fmt::Debug for Tls {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Tls")
                .field("files", &self.files)
                .finish_non_exhaustive()
        }
    }

    impl Tls {
        /// Reads nothing yet.
        pub fn new(files: Files, clock: Clock) -> Self {
            Self {
                files,
                clock,
                config: OnceLock::new(),
            }
        }

        /// Reads the files, unless that was done.
        pub fn prepare(&self) -> Result<(), Problem> {
            self.config().map(|_| ())
        }

        /// A session with this host, a name or an address, that has not begun yet.
        pub(crate) fn session(&self, host: &str) -> Result<Session, Problem> {
            let bare = host.trim_start_matches('[').trim_end_matches(']');
            let name = ServerName::try_from(bare.to_owned())
                .map_err(|_| Problem::Lasting(format!("{host} is no name for https")))?;
            let connection = ClientConnection::new(self.config()?, name)
                .map_err(|error| explain(error, self.clock))?;
            Ok(Session {
                connection: Box::new(connection),
                clock: self.clock,
            })
        }

        fn config(&self) -> Result<Arc<ClientConfig>, Problem> {
            if let Some(config) = self.config.get() {
                return Ok(config.clone());
            }
            let config = Arc::new(self.load()?);
            Ok(self.config.get_or_init(|| config).clone())
        }

        fn load(&self) -> Result<ClientConfig, Problem> {
            let provider = Arc::new(ring::default_provider());
            let builder = ClientConfig::builder_with_details(provider, Arc::new(Judge(self.clock)))
                .with_safe_default_protocol_versions()
                .map_err(|error| explain(error, self.clock))?
                .with_root_certificates(self.roots(&SYSTEM_ROOTS)?);
            let mut config = match &self.files.certificate {
                None => builder.with_no_client_auth(),
                Some(path) => {
                    let chain = certificates(path)?;
                    let key_path = self.files.key.as_ref().unwrap_or(path);
                    let key = key(key_path, self.files.key.is_some())?;
                    builder
                        .with_client_auth_cert(chain, key)
                        .map_err(|error| unusable(key_path, error_text(&error)))?
                }
            };
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            Ok(config)
        }

        pub(super) fn roots(&self, usual: &[&str]) -> Result<RootCertStore, Problem> {
            let mut roots = RootCertStore::empty();
            for path in &self.files.authorities {
                for certificate in certificates(path)? {
                    roots
                        .add(certificate)
                        .map_err(|error| unusable(path, error_text(&error)))?;
                }
            }
            let system = self.files.system.iter().map(PathBuf::as_path);
            let usual = usual.iter().map(Path::new);
            for path in system.chain(usual) {
                if !roots.is_empty() {
                    break;
                }
                match certificates(path) {
                    Ok(found) => {
                        // There is always one that is too old or too odd.
                        let (added, _) = roots.add_parsable_certificates(found);
                        log::debug!("{added} authorities are trusted, of {}", path.display());
                    }
                    Err(problem) if self.files.system.is_some() => return Err(problem),
                    Err(_) => {}
                }
            }
            if roots.is_empty() {
                return Err(Problem::Lasting(
                    "this system has no certificates of authorities to trust: \
                     name a PEM file with --cacert"
                        .to_owned(),
                ));
            }
            Ok(roots)
        }
    }

    /// Tells rustls what time it is.
    #[derive(Debug)]
    struct Judge(Clock);

    impl TimeProvider for Judge {
        fn current_time(&self) -> Option<UnixTime> {
            let since = Duration::from_secs(self.0.now().time.0);
            Some(UnixTime::since_unix_epoch(since))
        }
    }

    fn unusable(path: &Path, reason: impl Into<String>) -> Problem {
        Problem::File {
            path: path.to_owned(),
            reason: reason.into(),
        }
    }

    fn read(path: &Path) -> Result<Vec<u8>, Problem> {
        let fail = |error: io::Error| unusable(path, error.to_string());
        let mut bytes = Vec::new();
        let file = fs::File::open(path).map_err(fail)?;
        file.take(MAX_PEM).read_to_end(&mut bytes).map_err(fail)?;
        Ok(bytes)
    }

    fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Problem> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
        match found {
            Ok(found) if found.is_empty() => Err(unusable(path, "no PEM certificate is in it")),
            Ok(found) => Ok(found),
            Err(error) => Err(unusable(path, pem_text(&error))),
        }
    }

    fn key(path: &Path, named: bool) -> Result<PrivateKeyDer<'static>, Problem> {
        PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|error| match error {
            pem::Error::NoItemsFound if named => {
                unusable(path, "no private key is in it, or it has a password")
            }
            pem::Error::NoItemsFound => {
                unusable(path, "it has no private key with it; name one with --key")
            }
            error => unusable(path, pem_text(&error)),
        })
    }

    /// Not rustls' own text, which shows lines of the file as lists of numbers.
    fn pem_text(error: &pem::Error) -> &'static str {
        match error {
            pem::Error::MissingSectionEnd { .. } => "it ends in the middle of a PEM section",
            pem::Error::Base64Decode(_) => "its PEM is damaged",
            _ => "it is no PEM file",
        }
    }

    fn error_text(error: &Error) -> String {
        match error {
            Error::InconsistentKeys(_) => "the key is not that of the certificate".to_owned(),
            Error::InvalidCertificate(_) => "it has a malformed certificate".to_owned(),
            other => other.to_string(),
        }
    }

    /// What a failure of TLS means to a person, and whether trying again may help.
    fn explain(error: Error, clock: Clock) -> Problem {
        match error {
            Error::InvalidCertificate(reason) => Problem::Lasting(distrust(&reason, clock.now())),
            Error::AlertReceived(alert) => match alert {
                AlertDescription::CertificateRequired => Problem::Lasting(
                    "the server wants a client certificate (--cert, --key)".to_owned(),
                ),
                AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnknownCA
                | AlertDescription::AccessDenied => Problem::Lasting(format!(
                    "the server does not accept the client certificate ({alert:?})"
                )),
                AlertDescription::HandshakeFailure
                | AlertDescription::ProtocolVersion
                | AlertDescription::InsufficientSecurity
                | AlertDescription::UnrecognisedName
                | AlertDescription::NoApplicationProtocol => {
                    Problem::Lasting(format!("the server refuses this kind of TLS ({alert:?})"))
                }
                other => Problem::Passing(format!("the server ended TLS ({other:?})")),
            },
            Error::PeerIncompatible(reason) => Problem::Lasting(format!(
                "the server's TLS is too old or too odd ({reason:?})"
            )),
            Error::InvalidMessage(_) => {
                Problem::Passing("what answers there does not speak TLS".to_owned())
            }
            other => Problem::Passing(format!("TLS failed: {other}")),
        }
    }

    fn distrust(reason: &CertificateError, now: Now) -> String {
        match reason {
            CertificateError::UnknownIssuer => {
                "the server's certificate is not from an authority that is trusted here; \
                 --cacert names one"
                    .to_owned()
            }
            CertificateError::NotValidYetContext { not_before, .. } => format!(
                "the server's certificate is valid from {} on, and {now}; set the clock, or give \
                 --time-floor",
                Time(not_before.as_secs())
            ),
            CertificateError::ExpiredContext { not_after, .. } => format!(
                "the server's certificate expired on {}, and {now}",
                Time(not_after.as_secs())
            ),
            CertificateError::NotValidForNameContext { expected, .. } => {
                let names = reason.to_string();
                let names = names.rsplit_once("; ").map_or(&*names, |(_, names)| names);
                format!(
                    "the server's certificate is not one for {}: the {names}",
                    expected.to_str()
                )
            }
            other => format!("the server's certificate is refused: {other}"),
        }
    }

    /// One TLS session. The socket is lent for each call.
    pub struct Session {
        connection: Box<ClientConnection>,
        clock: Clock,
    }

    impl fmt::Debug for Session {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Session")
        }
    }

    impl Session {
        /// Begins the session.
        pub fn handshake(&mut self, wire: &mut (impl Read + Write)) -> Result<(), Problem> {
            while self.connection.is_handshaking() {
                self.flush(wire)?;
                if self.connection.wants_read() && !self.receive(wire)? {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
            }
            self.flush(wire)
        }

        /// The next plain bytes; zero once the server has said that there are no more.
        pub fn read(
            &mut self,
            wire: &mut (impl Read + Write),
            buffer: &mut [u8],
        ) -> Result<usize, Problem> {
            loop {
                match self.connection.reader().read(buffer) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.receive(wire)?;
                        self.flush(wire)?;
                    }
                    other => return Ok(other?),
                }
            }
        }

        /// Sends plain bytes.
        pub fn write_all(
            &mut self,
            wire: &mut (impl Read + Write),
            mut bytes: &[u8],
        ) -> Result<(), Problem> {
            while !bytes.is_empty() {
                let taken = self.connection.writer().write(bytes)?;
                bytes = bytes.get(taken..).unwrap_or_default();
                self.flush(wire)?;
            }
            Ok(())
        }

        /// True if nothing waits to be read and the server has not said goodbye.
        pub fn is_quiet(&self) -> bool {
            self.connection.wants_read()
        }

        /// False at the end of what the socket gives.
        fn receive(&mut self, wire: &mut (impl Read + Write)) -> Result<bool, Problem> {
            let received = self.connection.read_tls(wire)?;
            if let Err(error) = self.connection.process_new_packets() {
                // The server is told why, if it still listens; what counts is the reason.
                if let Err(problem) = self.flush(wire) {
                    log::debug!("no alert was sent: {problem:?}");
                }
                return Err(explain(error, self.clock));
            }
            Ok(received > 0)
        }

        fn flush(&mut self, wire: &mut (impl Read + Write)) -> Result<(), Problem> {
            while self.connection.wants_write() {
                if self.connection.write_tls(wire)? == 0 {
                    return Err(io::Error::from(io::ErrorKind::WriteZero).into());
                }
            }
            Ok(())
        }
    }
}

#[cfg(test)]
#[cfg(feature = "tls")]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::clock::Clock;

    #[test]
    fn a_system_without_certificates_says_what_to_do() {
        match Tls::default().roots(&["none"]) {
            Err(Problem::Lasting(cause)) => assert!(cause.contains("--cacert"), "{cause}"),
            other => panic!("{other:?}"),
        }
        let named = Files {
            system: Some("named".into()),
            ..Files::default()
        };
        let tls = Tls::new(named, Clock::default());
        match tls.roots(&["none"]) {
            Err(Problem::File { path, .. }) => assert_eq!(path, Path::new("named")),
            other => panic!("{other:?}"),
        }
    }
}
