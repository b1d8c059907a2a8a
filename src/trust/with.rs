//! Roots, and a bundle's signatures against them.
//!
//! Roots are parsed once, when they are loaded, so that a bad file is known before anything is
//! fetched; they are kept as bytes, since a certificate borrows from what it was parsed from.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::CertificateDer;

use super::chain::{Budget, Chain, Search};
use super::cms::{self, Signed, Signer};
use super::x509::Certificate;
use super::{config, BadFile, CertificateInfo, Reason, SignerInfo};
use crate::clock::{Clock, Now};
use crate::error::{Error, Result};
use crate::rugix::parse_signed_metadata;

/// Most bytes of a file of roots, and most roots.
const MAX_FILE: u64 = 1 << 20;
const MAX_ROOTS: usize = 64;

/// Largest signature; a larger one is passed over as a bad one.
const MAX_SIGNATURE: usize = 64 << 10;

/// Certificates that are trusted as they are, and the clock to judge all others by.
#[derive(Clone, Debug)]
pub struct Roots {
    all: Vec<Root>,
    clock: Clock,
}

#[derive(Clone, Debug)]
struct Root {
    path: PathBuf,
    der: Vec<u8>,
}

impl PartialEq for Roots {
    fn eq(&self, other: &Self) -> bool {
        let ders = |roots: &Self| {
            roots
                .all
                .iter()
                .map(|root| root.der.clone())
                .collect::<Vec<_>>()
        };
        ders(self) == ders(other)
    }
}

impl Eq for Roots {}

impl Roots {
    /// Reads PEM files, each with one certificate or more.
    pub fn load(files: &[PathBuf], clock: Clock) -> Result<Self, BadFile> {
        let mut all = Vec::new();
        for path in files {
            let bad = |reason: Reason| BadFile {
                path: path.clone(),
                reason,
            };
            let bytes = read(path).map_err(bad)?;
            let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
            let found = found.map_err(|_| bad("its PEM is damaged".to_owned()))?;
            if found.is_empty() {
                return Err(bad("no PEM certificate is in it".to_owned()));
            }
            all.extend(found.iter().map(|der| (path.clone(), der.to_vec())));
        }
        Self::of(all, clock)
    }

    /// Roots of these certificates (DER), each with the file it stands in.
    pub fn of(
        certificates: impl IntoIterator<Item = (PathBuf, Vec<u8>)>,
        clock: Clock,
    ) -> Result<Self, BadFile> {
        let mut all = Vec::new();
        for (path, der) in certificates {
            let problem = match Certificate::parse(&der) {
                Err(reason) => Some(reason),
                Ok(_) if all.len() == MAX_ROOTS => {
                    Some(format!("there are more than {MAX_ROOTS} roots"))
                }
                Ok(_) => None,
            };
            if let Some(reason) = problem {
                return Err(BadFile { path, reason });
            }
            all.push(Root { path, der });
        }
        Ok(Self { all, clock })
    }

    /// Whether one of the signatures proves that the owner signed the bundle with this raw header.
    pub fn check(&self, signatures: &[&[u8]], header: &[u8]) -> Result<()> {
        let roots = self.parsed();
        let now = self.clock.now();
        let mut budget = Budget::default();
        let mut reasons = Vec::new();
        for signature in signatures {
            match check_one(signature, header, &roots, now, &mut budget) {
                Ok(signer) => {
                    log::info!("signed by {signer:?}");
                    return Ok(());
                }
                Err(reason) => reasons.push(reason),
            }
        }
        Err(untrusted(&reasons))
    }

    fn parsed(&self) -> Vec<Certificate<'_>> {
        let parsed = self.all.iter().map(|root| Certificate::parse(&root.der));
        // They were parsed before.
        parsed.filter_map(Result::ok).collect()
    }
}

/// The roots of a system: those that its administrator put below `etc`, if any.
///
/// | place | what |
/// |---|---|
/// | `reflash/roots.d/*.pem` | roots of this program |
/// | `rugix/ctrl.toml`, `[signatures] roots` | paths of the reference's roots |
pub fn configured(etc: &Path, clock: Clock) -> Result<Option<Roots>, BadFile> {
    let files = config::files(etc)?;
    if files.is_empty() {
        return Ok(None);
    }
    Roots::load(&files, clock).map(Some)
}

/// A failure to prove that a bundle is what the owner signed.
fn untrusted(reasons: &[Reason]) -> Error {
    Error::Untrusted {
        reason: match reasons {
            [] => "it has no signature, and --root-cert asks for one".to_owned(),
            [one] => format!("its signature is not accepted: {one}"),
            several => {
                let numbered = several.iter().enumerate();
                let numbered = numbered.map(|(i, reason)| format!("({}) {reason}", i + 1));
                let all = numbered.collect::<Vec<_>>().join("; ");
                format!(
                    "none of its {} signatures is accepted: {all}",
                    several.len()
                )
            }
        },
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Reason> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    let read = file.take(MAX_FILE + 1).read_to_end(&mut bytes);
    read.map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MAX_FILE {
        return Err("it is too large to be a file of certificates".to_owned());
    }
    Ok(bytes)
}

/// Whether this signature is good; the name of the signer.
fn check_one(
    signature: &[u8],
    header: &[u8],
    roots: &[Certificate<'_>],
    now: Now,
    budget: &mut Budget,
) -> Result<String, Reason> {
    let signed = parse(signature)?;
    let mut reason = "it has no signer".to_owned();
    for signer in &signed.signers {
        match check_signer(&signed, signer, header, roots, now, budget) {
            Ok(chain) => {
                return Ok(chain
                    .first()
                    .map(|signer| signer.name())
                    .unwrap_or_default())
            }
            Err(other) => reason = other,
        }
    }
    Err(reason)
}

fn parse(signature: &[u8]) -> Result<Signed<'_>, Reason> {
    if signature.len() > MAX_SIGNATURE {
        return Err("it is larger than allowed".to_owned());
    }
    cms::parse(signature)
}

/// The chain to a root, if the signature is good in every respect.
fn check_signer<'s, 'a>(
    signed: &'s Signed<'a>,
    signer: &'s Signer<'a>,
    header: &[u8],
    roots: &'s [Certificate<'a>],
    now: Now,
    budget: &mut Budget,
) -> Result<Chain<'s, 'a>, Reason> {
    let search = Search {
        pool: &signed.certificates,
        roots,
        now,
    };
    let mut reason = "the certificate of its signer does not come with it".to_owned();
    for certificate in signed.certificates_of(signer) {
        let result = search.find(certificate, budget).and_then(|chain| {
            budget.check()?;
            signed.verify(signer, certificate)?;
            Ok(chain)
        });
        match result {
            Ok(chain) => {
                let digest = parse_signed_metadata(signed.content)
                    .map_err(|error| format!("what was signed is no bundle hash: {error}"))?;
                return match digest.verify(header) {
                    Ok(_) => Ok(chain),
                    Err(found) => Err(format!(
                        "it is one of another bundle: {digest} was signed, this is {found}"
                    )),
                };
            }
            Err(other) => reason = other,
        }
    }
    Err(reason)
}

/// What can be told of one signature, by which of these roots it is accepted, and why not.
pub fn describe(
    signature: &[u8],
    header: &[u8],
    roots: Option<&Roots>,
) -> Result<Vec<SignerInfo>, Reason> {
    let signed = parse(signature)?;
    let parsed = roots.map(Roots::parsed).unwrap_or_default();
    let now = roots.map(|roots| roots.clock).unwrap_or_default().now();
    let describe_signer = |signer: &Signer<'_>| {
        let certificate = signed.certificates_of(signer).next();
        let mut chain = certificate.map_or_else(Vec::new, |first| named_chain(&signed, first));
        let mut accepted = Vec::new();
        // Of a single root, the reason is that of all of them.
        let mut reason = match roots {
            None => Err("no root is given".to_owned()),
            Some(_) => {
                let mut budget = Budget::default();
                check_signer(&signed, signer, header, &parsed, now, &mut budget).map(|_| ())
            }
        };
        for (index, root) in parsed.iter().enumerate().filter(|_| reason.is_ok()) {
            let one = std::slice::from_ref(root);
            let mut budget = Budget::default();
            if let Ok(found) = check_signer(&signed, signer, header, one, now, &mut budget) {
                let path = roots
                    .and_then(|roots| roots.all.get(index))
                    .map(|root| &root.path);
                let path = path
                    .map(|path| path.display().to_string())
                    .unwrap_or_default();
                accepted.push(format!("{path} ({})", root.name()));
                chain = found.iter().skip(1).map(|found| info(found)).collect();
            }
        }
        SignerInfo {
            certificate: certificate.map(info),
            algorithm: signer.algorithm_name(),
            chain,
            verdict: std::mem::replace(&mut reason, Ok(())).map(|()| accepted),
        }
    };
    Ok(signed.signers.iter().map(describe_signer).collect())
}

/// The certificates that came along and may stand above this one, by their names alone.
fn named_chain(signed: &Signed<'_>, first: &Certificate<'_>) -> Vec<CertificateInfo> {
    let mut chain: Vec<&Certificate<'_>> = Vec::new();
    let mut last = first;
    while let Some(above) = signed.certificates.iter().find(|above| {
        above.subject.raw == last.issuer.raw
            && above.raw != first.raw
            && !chain.iter().any(|other| other.raw == above.raw)
    }) {
        chain.push(above);
        last = above;
    }
    chain.into_iter().map(info).collect()
}

fn info(certificate: &Certificate<'_>) -> CertificateInfo {
    let serial = certificate.serial.contents.iter().take(20);
    CertificateInfo {
        subject: certificate.name(),
        issuer: certificate.issuer_name(),
        serial: serial.map(|byte| format!("{byte:02x}")).collect(),
        not_before: certificate.not_before,
        not_after: certificate.not_after,
    }
}
