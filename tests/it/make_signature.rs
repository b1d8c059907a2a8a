//! Certificates and CMS signatures to order, good ones and such as no tool makes. DER is written
//! here by hand and shares nothing with the product's reader; rcgen makes certificates and keys.

use std::sync::atomic::{AtomicU8, Ordering};

use rcgen::{
    date_time_ymd, BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, DnType,
    IsCa, Issuer, KeyPair, KeyUsagePurpose, SerialNumber, SignatureAlgorithm, SigningKey,
    PKCS_ECDSA_P256_SHA256, PKCS_ED25519,
};

use crate::make_bundle::{end, start, value, Hash};

/// One DER value.
pub fn der(tag: u8, contents: impl AsRef<[u8]>) -> Vec<u8> {
    let contents = contents.as_ref();
    let mut bytes = vec![tag];
    match contents.len() {
        len @ 0..=127 => bytes.push(len as u8),
        len @ 128..=255 => bytes.extend([0x81, len as u8]),
        len => bytes.extend([0x82, (len >> 8) as u8, len as u8]),
    }
    bytes.extend(contents);
    bytes
}

fn all(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    der(tag, parts.concat())
}

const DATA: &[u8] = &[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 7, 1];
const SIGNED_DATA: &[u8] = &[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 7, 2];
const CONTENT_TYPE: &[u8] = &[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 3];
const MESSAGE_DIGEST: &[u8] = &[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 4];
const SHA256: &[u8] = &[0x30, 11, 6, 9, 0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, 1];
const SHA512: &[u8] = &[0x30, 11, 6, 9, 0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, 3];
const ECDSA_SHA256: &[u8] = &[0x30, 10, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
const ED25519: &[u8] = &[0x30, 5, 6, 3, 0x2b, 0x65, 0x70];

fn is_ed25519(key: &KeyPair) -> bool {
    key.algorithm() == &PKCS_ED25519
}

/// A certificate and its key.
pub struct Made {
    pub name: String,
    pub der: Vec<u8>,
    pub pem: String,
    serial: u8,
    issuer: String,
    key: KeyPair,
}

/// What a certificate is to be.
pub struct Wanted {
    name: String,
    algorithm: &'static SignatureAlgorithm,
    params: CertificateParams,
    serial: u8,
}

fn named(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

fn name_der(name: &str) -> Vec<u8> {
    let part = all(0x30, &[&[6, 3, 0x55, 4, 3], &der(0x0c, name)]);
    der(0x30, der(0x31, part))
}

impl Wanted {
    /// One that may sign, valid from 2000 to 2100.
    pub fn signer(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = named(name);
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(2100, 1, 1);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // Different ones, so that issuer and serial name one certificate.
        static SERIAL: AtomicU8 = AtomicU8::new(1);
        let serial = 1 + SERIAL.fetch_add(1, Ordering::Relaxed) % 100;
        params.serial_number = Some(SerialNumber::from(vec![serial]));
        Self {
            name: name.to_owned(),
            algorithm: &PKCS_ECDSA_P256_SHA256,
            params,
            serial,
        }
    }

    /// One that may issue others.
    pub fn authority(name: &str) -> Self {
        let unlimited = BasicConstraints::Unconstrained;
        Self::signer(name).edit(|params| {
            params.is_ca = IsCa::Ca(unlimited);
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        })
    }

    pub fn edit(mut self, edit: impl FnOnce(&mut CertificateParams)) -> Self {
        edit(&mut self.params);
        self
    }

    pub fn extension(self, oid: &[u64], contents: Vec<u8>, critical: bool) -> Self {
        self.edit(|params| {
            let mut extension = CustomExtension::from_oid_content(oid, contents);
            extension.set_criticality(critical);
            params.custom_extensions.push(extension);
        })
    }

    pub fn path_length(self, length: u8) -> Self {
        self.edit(|params| params.is_ca = IsCa::Ca(BasicConstraints::Constrained(length)))
    }

    pub fn years(self, from: i32, to: i32) -> Self {
        self.edit(|params| {
            params.not_before = date_time_ymd(from, 1, 1);
            params.not_after = date_time_ymd(to, 1, 1);
        })
    }

    pub fn ed25519(mut self) -> Self {
        self.algorithm = &PKCS_ED25519;
        self
    }

    /// Issued by itself.
    pub fn root(self) -> Made {
        self.make(None)
    }

    pub fn by(self, issuer: &Made) -> Made {
        self.make(Some(issuer))
    }

    fn make(self, issuer: Option<&Made>) -> Made {
        let key = KeyPair::generate_for(self.algorithm).unwrap();
        let certificate = match issuer {
            None => self.params.self_signed(&key),
            Some(issuer) => {
                // Not its own parameters: rcgen would not do what those forbid.
                let mut params = CertificateParams::new(Vec::new()).unwrap();
                params.distinguished_name = named(&issuer.name);
                let issuer = Issuer::new(params, &issuer.key);
                self.params.signed_by(&key, &issuer)
            }
        };
        let certificate = certificate.unwrap();
        Made {
            issuer: issuer.map_or(&self.name, |issuer| &issuer.name).clone(),
            name: self.name,
            der: certificate.der().to_vec(),
            pem: certificate.pem(),
            serial: self.serial,
            key,
        }
    }
}

/// The structure that is signed.
pub fn metadata(header: &[u8]) -> Vec<u8> {
    let hash = Hash::Sha512_256.digest_string(header);
    [
        start(0x61d0_871e),
        value(0x1f99_2dfc, hash),
        end(0x61d0_871e),
    ]
    .concat()
}

/// How a signature is to differ from a good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Twist {
    None,
    /// Not wrong.
    NoAttributes,
    /// Not wrong.
    Signers(usize),
    OtherContentType,
    /// Neither digest nor content type: only what is signed is signed.
    NoDigest,
    NoContentType,
    TwoDigests,
    WrongDigest,
    Unannounced,
    /// ECDSA with SHA-256 over a digest that claims to be SHA-512.
    Contradiction,
    /// The attributes are signed as they stand, not as a SET.
    AsTheyStand,
    OtherSerial,
    Detached,
    Trailing,
    /// The signature of something else.
    Other,
    /// Indefinite lengths, as `openssl cms -stream` makes them.
    Indefinite,
}

/// A CMS signature over `content`, with these certificates.
pub fn cms(content: &[u8], signer: &Made, certificates: &[&Made], twist: Twist) -> Vec<u8> {
    let digest_algorithm = match twist {
        Twist::Contradiction => SHA512,
        _ => SHA256,
    };
    let (digest, other) = match twist {
        Twist::Contradiction => (Hash::Sha512.digest(content), Vec::new()),
        Twist::WrongDigest => (Hash::Sha256.digest(b"other"), Vec::new()),
        _ => (Hash::Sha256.digest(content), Hash::Sha256.digest(b"other")),
    };
    let attribute = |name: &[u8], value: &[u8]| all(0x30, &[name, &der(0x31, value)]);
    let mut attributes = Vec::new();
    if twist != Twist::NoContentType {
        let kind = match twist {
            Twist::OtherContentType => SIGNED_DATA,
            _ => DATA,
        };
        attributes.extend(attribute(CONTENT_TYPE, kind));
    }
    if twist != Twist::NoDigest {
        attributes.extend(attribute(MESSAGE_DIGEST, &der(4, &digest)));
    }
    if twist == Twist::TwoDigests {
        attributes.extend(attribute(MESSAGE_DIGEST, &der(4, &other)));
    }
    let message = match twist {
        Twist::NoAttributes => content.to_vec(),
        Twist::AsTheyStand => der(0xa0, &attributes),
        Twist::Other => b"other".to_vec(),
        _ => der(0x31, &attributes),
    };
    let signature = signer.key.sign(&message).unwrap();
    let serial = match twist {
        Twist::OtherSerial => 127,
        _ => signer.serial,
    };
    let algorithm = if is_ed25519(&signer.key) {
        ED25519
    } else {
        ECDSA_SHA256
    };
    let attributes = match twist {
        Twist::NoAttributes => Vec::new(),
        _ => der(0xa0, &attributes),
    };
    let info = all(
        0x30,
        &[
            &[2, 1, 1],
            &all(0x30, &[&name_der(&signer.issuer), &[2, 1, serial]]),
            digest_algorithm,
            &attributes,
            algorithm,
            &der(4, &signature),
        ],
    );
    let infos = match twist {
        Twist::Signers(count) => info.repeat(count),
        _ => info,
    };
    let announced = match twist {
        Twist::Unannounced => SHA512,
        _ => digest_algorithm,
    };
    let embedded = match twist {
        Twist::Detached => Vec::new(),
        _ => der(0xa0, der(4, content)),
    };
    let certificates: Vec<u8> = certificates.iter().flat_map(|c| c.der.clone()).collect();
    let signed = [
        vec![2, 1, 1],
        der(0x31, announced),
        all(0x30, &[DATA, &embedded]),
        der(0xa0, certificates),
        der(0x31, infos),
    ]
    .concat();
    let mut whole = match twist {
        Twist::Indefinite => [&[0x30, 0x80], &signed[..], &[0, 0]].concat(),
        _ => der(0x30, signed),
    };
    whole = all(0x30, &[SIGNED_DATA, &der(0xa0, whole)]);
    if twist == Twist::Trailing {
        whole.push(0);
    }
    whole
}
