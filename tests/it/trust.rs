//! What makes a bundle trusted: signatures, chains, dates, and what is said of those that fail.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{ExtendedKeyUsagePurpose, KeyUsagePurpose};
use reflash::internal::clock::{Clock, Time};
use reflash::internal::rugix;
use reflash::internal::trust::Roots;
use serde_json::Value;

use crate::make_bundle::{random_image, Bundle, Payload};
use crate::make_signature::{cms, metadata, Made, Twist, Wanted};
use crate::server::Server;
use crate::util::{assert_file, data, read_json, temp_dir, text, vector, Run};

const HEADER: &[u8] = b"any bytes will do for a header";

fn certificate(name: &str) -> PathBuf {
    data(&format!("vectors/certs/{name}.crt"))
}

fn time(text: &str) -> Time {
    Time::parse(text).unwrap()
}

/// A clock that stands in the lifetime of all certificates here but the expired ones.
fn usual_clock() -> Clock {
    Clock::standing(time("2027-01-01"), Time(0))
}

/// The signatures and the raw header of a golden bundle.
fn parts(name: &str) -> (Vec<Vec<u8>>, Vec<u8>) {
    let bytes = vector(&format!("bundles/{name}.rugixb"));
    let facts = read_json(data(&format!("vectors/bundles/{name}.json")));
    let at = |key: &str| facts[key].as_u64().unwrap() as usize;
    let (start, size) = (at("header-offset"), at("header-size"));
    let header = bytes[start..start + size].to_vec();
    let rest = &bytes[start + size..at("payloads-offset")];
    let signatures = match rest.is_empty() {
        true => Vec::new(),
        false => rugix::parse_signatures(rest, 0).unwrap(),
    };
    let told = facts["signatures"].as_array().map_or(0, Vec::len);
    assert_eq!(signatures.len(), told, "{name}");
    (signatures.iter().map(|s| s.to_vec()).collect(), header)
}

fn verdict(signatures: &[Vec<u8>], header: &[u8], roots: &Roots) -> Result<(), String> {
    let signatures: Vec<_> = signatures.iter().map(Vec::as_slice).collect();
    roots.check(&signatures, header).map_err(|e| e.to_string())
}

/// The names of all signed bundles, with what is told of them.
fn signed() -> serde_json::Map<String, Value> {
    let facts = read_json(data("vectors/bundles/signatures.json"));
    let facts = facts.as_object().unwrap().clone();
    assert_eq!(facts.len(), 22, "a bundle came or went");
    facts
}

// ---- golden bundles --------------------------------------------------------------------------

#[test]
fn every_golden_signature_gets_its_verdict() {
    let mut accepted = 0;
    for (name, facts) in signed() {
        let (signatures, header) = parts(&name);
        for root in ["root", "other"] {
            let told = match root {
                // Signed with SHA-512 under P-256: optional, and accepted here.
                "root" => text(&facts, "/ours-with-root.crt"),
                _ => text(&facts, "/rugix-bundler-0.8.15-openssl-3.0/other.crt"),
            };
            let roots = Roots::load(&[certificate(root)], usual_clock()).unwrap();
            let found = verdict(&signatures, &header, &roots);
            let right = found.is_ok() == (told != "reject");
            assert!(right, "{name} with {root}: {found:?}, told {told}");
            accepted += usize::from(found.is_ok());
        }
    }
    assert_eq!(accepted, 14);
}

/// The same by the binary, with what it says, and what it leaves on the target.
#[test]
fn a_signed_bundle_is_installed_or_refused_by_its_root() {
    let folder = temp_dir();
    let target = folder.path().join("target");
    let old = vec![0xa5; 9000];
    let image = vector("payloads/plain.bin");
    let install = |name: &str, root: &str| {
        fs::write(&target, &old).unwrap();
        let bundle = data(&format!("vectors/bundles/{name}.rugixb"));
        Run::new(["install".into(), bundle.into_os_string()])
            .args(["--target".as_ref(), target.as_os_str()])
            .args(["--root-cert".as_ref(), certificate(root).as_os_str()])
    };
    for (name, facts) in signed() {
        let outcome = install(&name, "root").run();
        if text(&facts, "/ours-with-root.crt") == "reject" {
            outcome
                .expect_exit(4)
                .expect_stderr("not trusted")
                .expect_stderr("hint: ");
            assert_file(&target, &old);
        } else {
            outcome.expect_exit(0);
            assert_file(&target, &image);
        }
    }
    for (name, root, reason) in [
        ("signed-base", "root", "it has no signature"),
        ("signed-altered-header", "root", "of another bundle"),
        ("signed-wrong-bundle", "root", "of another bundle"),
        ("signed-bad-signature", "root", "the signature is wrong"),
        (
            "signed-chain-missing",
            "root",
            "\"CN=Test Intermediate CA\" is not trusted here, and does not come with",
        ),
        ("signed-detached", "root", "not embedded"),
        ("signed-no-digsig", "root", "no digitalSignature"),
        (
            "signed-serverauth",
            "root",
            "neither codeSigning nor emailProtection",
        ),
        (
            "signed-ec",
            "other",
            "\"CN=Test Update CA\" is not trusted here",
        ),
        // Which certificate, its date, and the date here.
        (
            "signed-expired",
            "root",
            "CN=Expired Test Signer\" expired on 2021-01-01T00:00:00Z",
        ),
        ("signed-expired", "root", "the clock here says 20"),
    ] {
        let outcome = install(name, root).run();
        outcome.expect_exit(4).expect_stderr(reason);
        assert_file(&target, &old);
    }
    // Several roots, the wrong one first; and both kinds of trust.
    let hash = "sha512-256:fd9d700f53c1c083c9712ac27da2ffa172de886f63c129ac699f96641e75c68d";
    let other = ["--root-cert".into(), certificate("other").into_os_string()];
    install("signed-ec", "other")
        .args(["--root-cert".into(), certificate("root").into_os_string()])
        .run()
        .expect_exit(0);
    install("signed-ec", "root")
        .args(other)
        .args(["--bundle-hash", hash])
        .run()
        .expect_exit(0);
    let wrong = hash.replace("fd9d", "fd9e");
    let outcome = install("signed-ec", "root")
        .args(["--bundle-hash", &wrong])
        .run();
    outcome
        .expect_exit(4)
        .expect_stderr("digest of bundle header");
    assert_file(&target, &old);
    let outcome = install("signed-ec", "other")
        .args(["--bundle-hash", hash])
        .run();
    outcome.expect_exit(4).expect_stderr("not trusted");
    assert_file(&target, &old);
    // D02: the hash is a way out when the signer expired.
    let bundle = data("vectors/bundles/signed-expired.rugixb");
    Run::new(["install".into(), bundle.into_os_string()])
        .args(["--target".as_ref(), target.as_os_str()])
        .args(["--bundle-hash", hash])
        .run()
        .expect_exit(0);
    assert_file(&target, &image);
}

#[test]
fn a_file_that_is_no_root_is_a_usage_error_that_names_it() {
    let folder = temp_dir();
    let path = |name: &str| folder.path().join(name);
    let root = fs::read_to_string(certificate("root")).unwrap();
    fs::write(path("empty.pem"), "").unwrap();
    fs::write(path("cut.pem"), &root[..root.len() / 2]).unwrap();
    fs::write(path("key.pem"), root.replace("CERTIFICATE", "PRIVATE KEY")).unwrap();
    let mut lines: Vec<_> = root.lines().collect();
    lines.remove(2);
    fs::write(path("damaged.pem"), lines.join("\n")).unwrap();
    for name in ["none.pem", "empty.pem", "cut.pem", "key.pem", "damaged.pem"] {
        let shown = path(name).display().to_string();
        let usual = ["install", "b", "--target", "t", "--root-cert", &shown];
        let outcome = Run::new(usual).dir(folder.path()).run();
        outcome
            .expect_exit(2)
            .expect_stderr("--root-cert")
            .expect_stderr(&shown);
    }
    let usual = ["install", "b", "--target", "t", "--root-cert", "r"];
    let both = [&usual[..], &["--insecure-skip-bundle-verification"]].concat();
    Run::new(both).dir(folder.path()).run().expect_exit(2);
}

// ---- clocks ----------------------------------------------------------------------------------

/// C01, C02: a clock that stands in 1970 neither blocks what is valid nor lets pass what expired.
#[test]
fn a_clock_without_a_battery_is_helped_by_a_floor() {
    let check = |name: &str, clock| {
        let (signatures, header) = parts(name);
        let roots = Roots::load(&[certificate("root")], clock).unwrap();
        verdict(&signatures, &header, &roots)
    };
    let floor = time("2027-01-01");
    let (epoch, never) = (Time(0), Time(0));
    assert_eq!(check("signed-chain", Clock::standing(epoch, floor)), Ok(()));
    assert_eq!(check("signed-chain", Clock::standing(floor, never)), Ok(()));
    let refused = check("signed-chain", Clock::standing(epoch, never)).unwrap_err();
    for part in [
        "CN=",
        "2026-11-30T15:47:5",
        "1970-01-01T00:00:00Z",
        "--time-floor",
    ] {
        assert!(refused.contains(part), "{refused}");
    }
    for clock in [Clock::standing(epoch, floor), Clock::standing(floor, never)] {
        let refused = check("signed-expired", clock).unwrap_err();
        assert!(refused.contains("expired on 2021-01-01"), "{refused}");
        assert!(refused.contains("2027-01-01T00:00:00Z"), "{refused}");
    }
    // The claimed signing time, which lies in 2026, is not believed; nor is a floor moved back.
    assert!(check("signed-ec", Clock::standing(time("2130-01-01"), never)).is_err());
    assert!(check("signed-ec", Clock::standing(time("2130-01-01"), floor)).is_err());
    // The build date alone does for what was signed before the build.
    let built = Clock::new(None).now().time;
    assert!(built >= reflash::internal::clock::BUILD_DATE);

    let folder = temp_dir();
    let bundle = data("vectors/bundles/signed-ec.rugixb");
    let run = |floor: &str| {
        Run::new(["install".as_ref(), bundle.as_os_str()])
            .args(["--target".into(), folder.path().join("t").into_os_string()])
            .args(["--root-cert".into(), certificate("root").into_os_string()])
            .args(["--time-floor", floor])
            .run()
    };
    run("2126-11-30")
        .expect_exit(4)
        .expect_stderr("2126-11-30T00:00:00Z at least");
    run("1970-01-01").expect_exit(0);
}

// ---- chains ----------------------------------------------------------------------------------

/// Roots made of these certificates, by a clock in 2027.
fn roots(folder: &Path, certificates: &[&Made]) -> Roots {
    let path = folder.join("roots.pem");
    let all: String = certificates.iter().map(|made| made.pem.clone()).collect();
    fs::write(&path, format!("# some words before\n{all}")).unwrap();
    Roots::load(&[path], usual_clock()).unwrap()
}

/// What is made of a good signature by `signer`, with these certificates and roots.
fn judge(signer: &Made, with: &[&Made], trusted: &[&Made]) -> Result<(), String> {
    let folder = temp_dir();
    let signature = cms(&metadata(HEADER), signer, with, Twist::None);
    verdict(&[signature], HEADER, &roots(folder.path(), trusted))
}

#[track_caller]
fn refused(result: Result<(), String>, reason: &str) {
    let found = result.expect_err(reason);
    assert!(found.contains(reason), "{found}");
}

const CODE_SIGNING: ExtendedKeyUsagePurpose = ExtendedKeyUsagePurpose::CodeSigning;
const SERVER_AUTH: ExtendedKeyUsagePurpose = ExtendedKeyUsagePurpose::ServerAuth;

#[test]
fn a_signers_certificate_must_allow_it() {
    let root = Wanted::authority("root").root();
    let sign = |wanted: Wanted| {
        let signer = wanted.by(&root);
        judge(&signer, &[&signer], &[&root])
    };
    let wanted = || Wanted::signer("signer");
    let with = |purposes: &[ExtendedKeyUsagePurpose]| {
        sign(wanted().edit(|params| params.extended_key_usages = purposes.to_vec()))
    };
    for fine in [
        sign(wanted()),
        sign(wanted().ed25519()),
        sign(wanted().edit(|params| params.key_usages.clear())),
        with(&[CODE_SIGNING]),
        with(&[ExtendedKeyUsagePurpose::EmailProtection]),
        with(&[ExtendedKeyUsagePurpose::Any]),
        with(&[SERVER_AUTH, CODE_SIGNING]),
        sign(wanted().extension(&[1, 2, 3], vec![5, 0], false)),
    ] {
        assert_eq!(fine, Ok(()));
    }
    refused(with(&[SERVER_AUTH]), "neither codeSigning");
    let agreement = vec![KeyUsagePurpose::KeyAgreement];
    refused(
        sign(wanted().edit(|params| params.key_usages = agreement)),
        "no digitalSignature",
    );
    refused(
        sign(wanted().extension(&[1, 2, 3], vec![5, 0], true)),
        "critical extension",
    );
    // Name constraints, which are not looked at.
    let constraints = vec![0x30, 0];
    refused(
        sign(wanted().extension(&[2, 5, 29, 30], constraints, false)),
        "name constraints",
    );
    refused(
        sign(wanted().years(2000, 2026)),
        "\"CN=signer\" expired on 2026-01-01",
    );
    refused(
        sign(wanted().years(2028, 2030)),
        "\"CN=signer\" is valid from 2028-01-01",
    );
    refused(
        sign(Wanted::authority("signer").edit(|params| params.key_usages.clear())),
        "one of an authority",
    );
    // Without its certificate there is nothing to check it with.
    let signer = wanted().by(&root);
    refused(judge(&signer, &[], &[&root]), "does not come with it");
}

/// D03: one certificate as root and signer, and other roots that are trusted as they are.
#[test]
fn a_root_is_trusted_as_it_is() {
    let alone = Wanted::signer("alone").root();
    assert_eq!(judge(&alone, &[&alone], &[&alone]), Ok(()));
    let other = Wanted::authority("alone").root();
    refused(judge(&alone, &[&alone], &[&other]), "not from");
    assert_eq!(judge(&alone, &[&alone], &[&other, &alone]), Ok(()));
    // What `openssl req -x509` makes for a person in a hurry.
    let hurried = Wanted::authority("hurried")
        .edit(|params| params.key_usages.clear())
        .root();
    assert_eq!(judge(&hurried, &[&hurried], &[&hurried]), Ok(()));
    // An authority below another, named as root without the one above it.
    let above = Wanted::authority("above").root();
    let below = Wanted::authority("below").by(&above);
    let signer = Wanted::signer("signer").by(&below);
    assert_eq!(judge(&signer, &[&signer], &[&below]), Ok(()));
    assert_eq!(judge(&signer, &[&signer, &below], &[&below]), Ok(()));
    // A signer's certificate as root says nothing of others.
    let child = Wanted::signer("child").by(&alone);
    refused(judge(&child, &[&child], &[&alone]), "the signer's own");
    // Name constraints would have to be obeyed.
    let limits = vec![0x30, 0];
    let narrow = Wanted::authority("narrow").extension(&[2, 5, 29, 30], limits, true);
    let narrow = narrow.root();
    let signer = Wanted::signer("signer").by(&narrow);
    refused(judge(&signer, &[&signer], &[&narrow]), "name constraints");
    // D02.
    let expired = Wanted::authority("root").years(2000, 2026).root();
    let signer = Wanted::signer("signer").by(&expired);
    refused(
        judge(&signer, &[&signer], &[&expired]),
        "\"CN=root\" expired on 2026-01-01",
    );
}

#[test]
fn authorities_between_keep_to_their_limits() {
    let root = Wanted::authority("root").root();
    let chain = |between: Wanted| {
        let between = between.by(&root);
        let signer = Wanted::signer("signer").by(&between);
        judge(&signer, &[&signer, &between], &[&root])
    };
    let wanted = || Wanted::authority("between");
    assert_eq!(chain(wanted()), Ok(()));
    assert_eq!(chain(wanted().path_length(0)), Ok(()));
    assert_eq!(
        chain(wanted().edit(|params| params.key_usages.clear())),
        Ok(())
    );
    refused(chain(Wanted::signer("between")), "not one of an authority");
    let usages = vec![KeyUsagePurpose::CrlSign];
    refused(
        chain(wanted().edit(|params| params.key_usages = usages)),
        "no keyCertSign",
    );
    refused(chain(wanted().years(2000, 2026)), "\"CN=between\" expired");
    refused(
        chain(wanted().edit(|params| params.extended_key_usages = vec![SERVER_AUTH])),
        "neither codeSigning",
    );
    refused(
        chain(wanted().extension(&[1, 2, 3], vec![5, 0], true)),
        "critical",
    );

    // Lengths of paths: none of the root's, none of the first authority's.
    let narrow = Wanted::authority("root").path_length(0).root();
    let between = wanted().by(&narrow);
    let signer = Wanted::signer("signer").by(&between);
    refused(
        judge(&signer, &[&signer, &between], &[&narrow]),
        "more authorities below",
    );
    let first = Wanted::authority("first").path_length(0).by(&root);
    let second = Wanted::authority("second").by(&first);
    let signer = Wanted::signer("signer").by(&second);
    refused(
        judge(&signer, &[&signer, &second, &first], &[&root]),
        "more authorities below",
    );

    // Four are allowed between, five are not, in any order.
    let mut line = vec![Wanted::authority("a0").root()];
    for i in 1..=5 {
        let next = Wanted::authority(&format!("a{i}")).by(line.last().unwrap());
        line.push(next);
    }
    for (end, right) in [(4, true), (5, false)] {
        let signer = Wanted::signer("signer").by(&line[end]);
        let mut with: Vec<_> = line[1..=end].iter().rev().collect();
        with.push(&signer);
        let found = judge(&signer, &with, &[&line[0]]);
        assert_eq!(found.is_ok(), right, "{found:?}");
    }
}

/// An issuer's name is no proof: its key is. And certificates of the same name cost no time.
#[test]
fn names_prove_nothing_and_cost_nothing() {
    let root = Wanted::authority("root").root();
    let fake = Wanted::authority("root").root();
    let signer = Wanted::signer("signer").by(&fake);
    refused(
        judge(&signer, &[&signer, &fake], &[&root]),
        "the signature is wrong",
    );
    // An authority that does not come from the root, before one that does.
    let good = Wanted::authority("between").by(&root);
    let bad = Wanted::authority("between").by(&fake);
    let signer = Wanted::signer("signer").by(&good);
    assert_eq!(
        judge(&signer, &[&bad, &good, &signer], &[&fake, &root]),
        Ok(())
    );
    // Fifteen that all could be each other's issuers: any number of chains, but not tried.
    let mut same: Vec<Made> = Vec::new();
    for _ in 0..15 {
        let next = Wanted::authority("same").by(same.last().unwrap_or(&fake));
        same.push(next);
    }
    let same: Vec<Made> = (0..15)
        .map(|i| Wanted::authority("same").by(&same[i]))
        .collect();
    let signer = Wanted::signer("signer").by(&same[0]);
    let mut with: Vec<&Made> = same.iter().collect();
    with.push(&signer);
    let begin = std::time::Instant::now();
    assert!(judge(&signer, &with, &[&root]).is_err());
    let trusted = Wanted::authority("same").root();
    refused(judge(&signer, &with, &[&trusted]), "than are tried");
    assert!(begin.elapsed().as_secs() < 10, "{:?}", begin.elapsed());
}

// ---- signatures ------------------------------------------------------------------------------

#[test]
fn what_a_signature_says_of_itself_must_agree() {
    let folder = temp_dir();
    let root = Wanted::authority("root").root();
    let signer = Wanted::signer("signer").by(&root);
    let trusted = roots(folder.path(), &[&root]);
    let content = metadata(HEADER);
    let check = |twist| {
        verdict(
            &[cms(&content, &signer, &[&signer], twist)],
            HEADER,
            &trusted,
        )
    };
    for fine in [Twist::None, Twist::NoAttributes, Twist::Signers(3)] {
        assert_eq!(check(fine), Ok(()), "{fine:?}");
    }
    for (twist, reason) in [
        (Twist::OtherContentType, "another one"),
        (Twist::NoDigest, "lacks a signed attribute"),
        (Twist::NoContentType, "lacks a signed attribute"),
        (Twist::TwoDigests, "twice"),
        (Twist::WrongDigest, "not what is embedded"),
        (Twist::Unannounced, "does not announce"),
        (Twist::Contradiction, "contradict"),
        (Twist::AsTheyStand, "the signature is wrong"),
        (Twist::OtherSerial, "does not come with it"),
        (Twist::Detached, "not embedded"),
        (Twist::Trailing, "malformed"),
        (Twist::Other, "the signature is wrong"),
        (Twist::Indefinite, "malformed"),
        (Twist::Signers(0), "no signer"),
        (Twist::Signers(17), "too many"),
    ] {
        refused(check(twist), reason);
    }
    // A bad one, or one of somebody else, does not spoil a good one; the reasons of all are told.
    let good = || cms(&content, &signer, &[&signer], Twist::None);
    let bad = || cms(&content, &signer, &[&signer], Twist::Other);
    let stranger = Wanted::signer("stranger").root();
    let foreign = || cms(&content, &stranger, &[&stranger], Twist::None);
    assert_eq!(
        verdict(&[bad(), vec![1, 2], foreign(), good()], HEADER, &trusted),
        Ok(())
    );
    let all = verdict(&[bad(), vec![1, 2], foreign()], HEADER, &trusted).unwrap_err();
    for part in [
        "none of its 3",
        "(1) the signature is wrong",
        "(2)",
        "(3) no trusted root",
    ] {
        assert!(all.contains(part), "{all}");
    }
    // Of another bundle, of something that is no metadata, and larger than allowed.
    refused(
        verdict(&[good()], b"other header", &trusted),
        "of another bundle",
    );
    let nonsense = cms(b"yes", &signer, &[&signer], Twist::None);
    refused(verdict(&[nonsense], HEADER, &trusted), "no bundle hash");
    refused(
        verdict(&[vec![0x30; 70_000]], HEADER, &trusted),
        "larger than allowed",
    );
    refused(verdict(&[], HEADER, &trusted), "no signature");
}

/// Names come from whoever made the bundle: they must not reach the terminal as they are.
#[test]
fn names_of_strangers_do_no_harm_in_messages() {
    let root = Wanted::authority("root").root();
    let name = format!("\x1b[2J\n{}", "x".repeat(1000));
    let signer = Wanted::signer(&name).root();
    let found = judge(&signer, &[&signer], &[&root]).unwrap_err();
    assert!(
        !found.contains(['\x1b', '\n']) && found.len() < 1000,
        "{found}"
    );
}

// ---- by the network --------------------------------------------------------------------------

/// The header of an unsigned bundle is not looked into, and nothing behind it is asked for.
#[test]
fn trust_comes_before_everything_else() {
    let folder = temp_dir();
    let payload = Payload::slot("system", random_image(400_000, 3)).chunker("fixed-4");
    let root = Wanted::authority("root").root();
    let signer = Wanted::signer("signer").by(&root);
    fs::write(folder.path().join("root.pem"), &root.pem).unwrap();
    // A header that no reader understands, and a signature of another.
    let broken = Bundle::of(payload).hash_text("md5");
    let broken = broken.signatures(vec![cms(
        &metadata(HEADER),
        &signer,
        &[&signer],
        Twist::None,
    )]);
    let server = Server::start([("/b", broken.make().bytes)]);
    let url = server.url("/b");
    let run = Run::new(["install", &url, "--target", "t", "--root-cert", "root.pem"]);
    let outcome = run.dir(folder.path()).run();
    outcome.expect_exit(4).expect_stderr("of another bundle");
    assert!(!folder.path().join("t").exists());
    assert_eq!(server.requests().len(), 1);
}
