//! The way to the server: names and addresses, proxies, headers and credentials, https.
//!
//! Around the recording server stand two small helpers: a [`Front`] that speaks TLS and passes
//! requests on, connection by connection, and a [`Forward`] proxy that puts down what it is asked.
//! Names such as `bundle.test` exist for `--resolve` and for the proxy only.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use reflash::internal::http::{Client, Settings};
use tempfile::TempDir;

use crate::make_bundle::{random_image, Bundle, Made, Payload};
use crate::server::{Fault, Server, When};
use crate::util::{assert_file, number, read_json, temp_dir, Outcome, Run};

// ---- a place to install from -----------------------------------------------------------------

const BLOCK: usize = 4096;

/// A server with a bundle, and a seed that lacks six runs of it.
struct Site {
    folder: TempDir,
    server: Server,
    made: Made,
    image: Vec<u8>,
}

impl Site {
    fn new() -> Self {
        let image = random_image(400 * BLOCK, 1);
        let mut seed = image.clone();
        for run in [10..20, 70..80, 130..140, 190..200, 250..260, 310..320] {
            seed[run.start * BLOCK..run.end * BLOCK].fill(7);
        }
        let made = Bundle::of(Payload::slot("system", image.clone())).make();
        let folder = temp_dir();
        fs::write(folder.path().join("seed"), seed).unwrap();
        let server = Server::start([("/b", made.bytes.clone())]);
        // Long enough for the second worker to wake up before the first has done it all.
        server.fault(When::Always, Fault::Delay(Duration::from_millis(15)));
        Self {
            server,
            folder,
            made,
            image,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn shown(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        fs::write(self.path(name), content).unwrap();
        self.shown(name)
    }

    fn run(&self, url: &str) -> Run {
        drop(fs::remove_file(self.path("target")));
        Run::new(["install", url, "--target", &self.shown("target")])
            .args(["--bundle-hash", &self.made.bundle_hash])
            .args(["--seed", &self.shown("seed")])
            .args(["--report", &self.shown("report")])
            .args(["--workers", "2", "--http-retry-initial-backoff", "0"])
            // A file that is not there: what the machine trusts must not matter.
            .env("SSL_CERT_FILE", self.path("no-system-certificates"))
    }

    #[track_caller]
    fn expect_installed(&self, outcome: &Outcome) {
        outcome.expect_exit(0);
        assert_file(self.path("target"), &self.image);
        self.server.assert_well_behaved_client();
    }

    /// Kept alive: not more than one connection a worker.
    #[track_caller]
    fn expect_kept_alive(&self, connections: usize) {
        assert!((1..=2).contains(&connections), "{connections}");
        let report = read_json(self.path("report"));
        assert_eq!(number(&report, "/http/connections"), connections as u64);
        assert_eq!(number(&report, "/http/retries"), 0);
        assert!(number(&report, "/http/requests") > 6);
    }

    /// The URL with another host, which has to be resolved somehow.
    fn named(&self, host: &str) -> String {
        format!("http://{host}:{}/b", self.server.port())
    }
}

/// Starts a thread for each connection to a free port.
fn listen(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = Arc::new(serve);
    // Ends with the test run.
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = Arc::clone(&serve);
            thread::spawn(move || serve(stream));
        }
    });
    port
}

fn connect_to(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A head with its empty line; none at the end of the connection.
fn read_head(stream: &mut impl Read) -> io::Result<Option<String>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte)? == 0 {
            return Ok(None);
        }
        head.push(byte[0]);
    }
    Ok(Some(String::from_utf8(head).unwrap()))
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(n, _)| n.eq_ignore_ascii_case(name))?;
    Some(value.trim())
}

/// Passes requests on to a server and answers back, one after the other.
fn relay(
    client: &mut (impl Read + Write),
    port: u16,
    mut first: Option<String>,
    seen: impl Fn(&str),
) -> io::Result<()> {
    let mut server = connect_to(port)?;
    loop {
        let head = match first.take() {
            Some(head) => head,
            None => match read_head(client)? {
                Some(head) => head,
                None => return Ok(()),
            },
        };
        seen(&head);
        server.write_all(head.as_bytes())?;
        let Some(answer) = read_head(&mut server)? else {
            return Ok(());
        };
        let length = header(&answer, "content-length").map_or(0, |it| it.parse().unwrap());
        client.write_all(answer.as_bytes())?;
        if io::copy(&mut (&mut server).take(length), client)? < length {
            return Ok(());
        }
        client.flush()?;
    }
}

// ---- names and addresses ---------------------------------------------------------------------

#[test]
fn resolve_stands_in_for_dns() {
    let site = Site::new();
    let port = site.server.port();
    for entry in [
        format!("bundle.test:{port}:127.0.0.1"),
        format!("BUNDLE.test:{port}:127.0.0.1"),
        format!("*:{port}:127.0.0.1"),
    ] {
        let url = site.named("bundle.test");
        let outcome = site.run(&url).args(["--resolve", &entry]).run();
        site.expect_installed(&outcome);
        let host = format!("bundle.test:{port}");
        for request in site.server.requests() {
            assert_eq!(request.header("host"), Some(&*host));
        }
    }
    for bad in ["bundle.test:127.0.0.1", "a:b:c", "a:80:name"] {
        let outcome = site.run("http://h/b").args(["--resolve", bad]).run();
        outcome.expect_exit(2).expect_stderr(bad);
    }
}

// A row of README.md.
#[test]
fn a_name_that_does_not_resolve_is_named() {
    let site = Site::new();
    let url = site.named("no-such-host.invalid");
    let run = site.run(&url).args(["--http-max-retries", "1"]);
    let outcome = run.args(["--connect-timeout", "3"]).run();
    outcome
        .expect_exit(3)
        .expect_stderr("the host name no-such-host.invalid cannot be resolved")
        .expect_stderr("2 tries");
}

/// Takes the place of a host that swallows packets: the queue of connections that wait to be
/// accepted is full, and the kernel drops what else comes.
struct BlackHole {
    _listener: socket2::Socket,
    _waiting: Vec<socket2::Socket>,
}

impl BlackHole {
    fn at(address: SocketAddr) -> Self {
        let socket = || socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let listener = socket().unwrap();
        listener.bind(&address.into()).unwrap();
        listener.listen(0).unwrap();
        let mut waiting = Vec::new();
        loop {
            let client = socket().unwrap();
            let limit = Duration::from_millis(200);
            let full = client.connect_timeout(&address.into(), limit).is_err();
            waiting.push(client);
            if full {
                break;
            }
            assert!(waiting.len() < 20, "nothing is dropped");
        }
        Self {
            _listener: listener,
            _waiting: waiting,
        }
    }
}

// A row of README.md.
#[test]
fn a_dead_address_costs_its_share_once() {
    for black_hole in [false, true] {
        let site = Site::new();
        let port = site.server.port();
        let dead = SocketAddr::from(([127, 0, 0, 2], port));
        let hole = black_hole.then(|| BlackHole::at(dead));
        let resolve = format!("bundle.test:{port}:127.0.0.2,127.0.0.1");
        let run = site.run(&site.named("bundle.test")).arg("-vv");
        let run = run.args(["--resolve", &resolve, "--connect-timeout", "4"]);
        let begun = Instant::now();
        let outcome = run.run();
        let elapsed = begun.elapsed();
        site.expect_installed(&outcome);
        let tried = outcome.stderr.matches("no connection to 127.0.0.2").count();
        outcome.expect(tried == 1, "the dead address is tried once");
        site.expect_kept_alive(site.server.connections());
        if hole.is_some() {
            let share = Duration::from_secs(2);
            outcome.expect(elapsed >= share, "half of the connect timeout was waited");
            outcome.expect(elapsed < share * 2, "but not longer");
        }
    }
}

#[test]
fn all_addresses_dead_is_a_network_failure() {
    let site = Site::new();
    let port = site.server.port();
    let resolve = format!("bundle.test:{port}:127.0.0.2,127.0.0.3");
    let run = site.run(&site.named("bundle.test"));
    let run = run.args(["--resolve", &resolve, "--http-max-retries", "1"]);
    let outcome = run.run();
    outcome.expect_exit(3).expect_stderr("refused");
    outcome.expect_stderr("2 tries");
}

#[test]
fn a_connection_under_way_can_be_stopped() {
    // A free port of that address, as far as one can know.
    let free = TcpListener::bind("127.0.0.2:0").unwrap();
    let dead = free.local_addr().unwrap();
    drop(free);
    let _hole = BlackHole::at(dead);
    let settings = Settings {
        connect_timeout: Duration::from_secs(30),
        ..Settings::default()
    };
    let mut client = Client::new(&format!("http://{dead}/b"), &settings, &Arc::default());
    let stopper = client.stopper();
    let begun = Instant::now();
    let stopping = thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        stopper.stop();
    });
    let failure = client.get(&(0..10)).unwrap_err();
    let elapsed = begun.elapsed();
    stopping.join().unwrap();
    assert!(elapsed >= Duration::from_millis(300), "{failure:?}");
    assert!(elapsed < Duration::from_secs(2), "{elapsed:?} {failure:?}");
}

// ---- headers and credentials -----------------------------------------------------------------

// A row of README.md.
#[test]
fn headers_go_to_the_first_origin_alone() {
    let (site, other) = (Site::new(), Site::new());
    let port = site.server.port();
    // Another port is another origin.
    let elsewhere = Fault::Redirect(other.server.url("/b"), 302);
    let here = Fault::Redirect("/b?moved=1".to_owned(), 302);
    site.server
        .fault(When::matching(|request| request.path == "/away"), elsewhere);
    site.server
        .fault(When::matching(|request| request.path == "/here"), here);
    for path in ["/away", "/here"] {
        site.server.set_file(path, &b"moved"[..]);
        site.server.reset_log();
        let url = format!("http://user:p%40ss-secret@127.0.0.1:{port}{path}");
        let outcome = site
            .run(&url)
            .args([
                "-H",
                "X-Token: token-secret",
                "--header=Cookie: a=cookie-secret",
            ])
            .args(["-vv", "--progress", "json"])
            .run();
        site.expect_installed(&outcome);
        let requests = site.server.requests();
        assert!(requests.len() > if path == "/here" { 6 } else { 0 });
        for request in &requests {
            assert_eq!(request.header("x-token"), Some("token-secret"));
            assert_eq!(request.header("cookie"), Some("a=cookie-secret"));
            // base64 of user:p@ss-secret
            let basic = "Basic dXNlcjpwQHNzLXNlY3JldA==";
            assert_eq!(request.header("authorization"), Some(basic));
        }
        let report = fs::read_to_string(site.path("report")).unwrap();
        for word in ["secret", "user:", "dXNlcj"] {
            outcome.expect_not_in_output(word);
            assert!(!report.contains(word), "{report}");
        }
    }
    let requests = other.server.requests();
    assert!(requests.len() > 6);
    for request in requests {
        for name in ["x-token", "cookie", "authorization"] {
            assert_eq!(request.header(name), None, "{name}");
        }
    }
}

#[test]
fn a_header_replaces_what_is_not_reserved() {
    let site = Site::new();
    let url = site.server.url("/b").replace("//", "//user:pass@");
    let run = site.run(&url).args(["-H", "Authorization: Bearer abc"]);
    let outcome = run.env("REFLASH_HEADER", "X: y").run();
    site.expect_installed(&outcome);
    let outcome = site
        .run(&url)
        .env(
            "REFLASH_HEADER",
            "Authorization: Bearer abc\nUser-Agent: me",
        )
        .run();
    site.expect_installed(&outcome);
    let requests = site.server.requests();
    for request in &requests {
        assert_eq!(request.header("authorization"), Some("Bearer abc"));
    }
    assert_eq!(requests.last().unwrap().header("user-agent"), Some("me"));
    for (bad, reason) in [
        ("Range: bytes=0-secret", "Range"),
        ("host: secret", "host"),
        ("Accept-Encoding: secret", "Accept-Encoding"),
        ("Content-Length: secret", "Content-Length"),
        ("Connection: secret", "Connection"),
        ("secret", "Name: value"),
        ("a b: secret", "--header"),
    ] {
        let outcome = site.run(&url).args(["-H", bad]).run();
        outcome.expect_exit(2).expect_stderr(reason);
        outcome.expect_not_in_output("secret");
    }
}

// ---- proxies ---------------------------------------------------------------------------------

/// A proxy for plain requests and for tunnels. It takes every name for this machine.
struct Forward {
    port: u16,
    /// First lines and all of the heads that came in, in order.
    heads: Arc<Mutex<Vec<String>>>,
    connections: Arc<AtomicUsize>,
}

impl Forward {
    /// `wanted`: what Proxy-Authorization must be, if anything.
    fn start(wanted: Option<&'static str>, refuses_tunnels: bool) -> Self {
        let heads = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(AtomicUsize::new(0));
        let port = listen({
            let (heads, connections) = (Arc::clone(&heads), Arc::clone(&connections));
            move |mut client| {
                connections.fetch_add(1, Ordering::SeqCst);
                let Ok(Some(head)) = read_head(&mut client) else {
                    return;
                };
                let seen = |head: &str| heads.lock().unwrap().push(head.to_owned());
                let words: Vec<_> = head.split(' ').collect();
                let tunnel = words[0] == "CONNECT";
                let refusal = match header(&head, "proxy-authorization") != wanted {
                    true => Some("407 Proxy Authentication Required"),
                    false => (tunnel && refuses_tunnels).then_some("403 Forbidden"),
                };
                if let Some(refusal) = refusal {
                    seen(&head);
                    let close = "Content-Length: 0\r\nConnection: close\r\n\r\n";
                    drop(client.write_all(format!("HTTP/1.1 {refusal}\r\n{close}").as_bytes()));
                    return;
                }
                let authority = words[1].trim_start_matches("http://").split('/').next();
                let port = authority.unwrap().rsplit(':').next().unwrap();
                let port = port.parse().unwrap();
                // The client or the server may end it at any time.
                drop(if tunnel {
                    seen(&head);
                    splice(client, port)
                } else {
                    relay(&mut client, port, Some(head), seen)
                });
            }
        });
        Self {
            port,
            heads,
            connections,
        }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn with_user(&self, user: &str) -> String {
        format!("http://{user}@127.0.0.1:{}", self.port)
    }

    /// The first lines since the last call.
    fn lines(&self) -> Vec<String> {
        let heads = std::mem::take(&mut *self.heads.lock().unwrap());
        let lines = heads.iter().map(|head| head.lines().next().unwrap());
        lines.map(str::to_owned).collect()
    }
}

fn splice(mut client: TcpStream, port: u16) -> io::Result<()> {
    let mut server = connect_to(port)?;
    client.write_all(b"HTTP/1.1 200 Connected\r\n\r\n")?;
    let (mut from, mut to) = (server.try_clone()?, client.try_clone()?);
    let back = thread::spawn(move || {
        drop(io::copy(&mut from, &mut to));
        drop(to.shutdown(std::net::Shutdown::Both));
    });
    drop(io::copy(&mut client, &mut server));
    drop(server.shutdown(std::net::Shutdown::Both));
    back.join().unwrap();
    Ok(())
}

#[test]
fn plain_requests_go_to_the_proxy_in_absolute_form() {
    let site = Site::new();
    let proxy = Forward::start(Some("Basic dXNlcjpwQHNz"), false);
    // Not resolved here: only the proxy knows it.
    let url = site.named("bundle.test") + "?query-secret";
    let run = site.run(&url).arg("-vv");
    let outcome = run.args(["--proxy", &proxy.with_user("user:p%40ss")]).run();
    site.expect_installed(&outcome);
    outcome.expect_not_in_output("query-secret");
    outcome.expect_not_in_output("dXNlcj");
    outcome.expect_not_in_output("p%40ss");
    let lines = proxy.lines();
    assert!(lines.len() > 6, "{lines:?}");
    for line in lines {
        assert_eq!(line, format!("GET {url} HTTP/1.1"));
    }
    for request in site.server.requests() {
        let host = format!("bundle.test:{}", site.server.port());
        assert_eq!(request.header("host"), Some(&*host));
    }
    site.expect_kept_alive(proxy.connections.load(Ordering::SeqCst));
}

#[test]
fn a_proxy_that_wants_other_credentials_ends_it() {
    let site = Site::new();
    let proxy = Forward::start(Some("Basic dXNlcjpwYXNz"), false);
    for url in [
        site.named("bundle.test"),
        "https://bundle.test/b".to_owned(),
    ] {
        if url.starts_with("https") && !cfg!(feature = "tls") {
            continue;
        }
        for given in [proxy.url(), proxy.with_user("user:wrong-secret")] {
            let run = site.run(&url).env_remove_roots(&site);
            let outcome = run.args(["--proxy", &given]).run();
            outcome.expect_exit(4).expect_stderr("407");
            outcome.expect_not_in_output("wrong-secret");
            assert_eq!(proxy.lines().len(), 1, "no use in asking again");
        }
    }
}

#[test]
fn proxies_come_from_the_environment_by_curls_rules() {
    let site = Site::new();
    let proxy = Forward::start(None, false);
    let at = proxy.url();
    let nowhere = "http://127.0.0.1:1";
    let url = site.server.url("/b");
    for (environment, options, proxied) in [
        (&[("http_proxy", &*at)][..], &[][..], true),
        (&[("all_proxy", &at)], &[], true),
        (&[("ALL_PROXY", &at)], &[], true),
        (&[("http_proxy", &at), ("all_proxy", nowhere)], &[], true),
        (&[("http_proxy", ""), ("ALL_PROXY", &at)], &[], true),
        // That one is a request's header where a web server runs programs.
        (&[("HTTP_PROXY", nowhere)], &[], false),
        (
            &[("https_proxy", nowhere), ("HTTPS_PROXY", nowhere)],
            &[],
            false,
        ),
        (&[("http_proxy", nowhere)], &["--proxy", ""], false),
        (&[("http_proxy", nowhere)], &["--proxy", &*at], true),
        (
            &[("http_proxy", nowhere), ("REFLASH_PROXY", &at)],
            &[],
            true,
        ),
        (
            &[("http_proxy", nowhere), ("no_proxy", "a, 127.0.0.1")],
            &[],
            false,
        ),
        (
            &[("http_proxy", nowhere), ("NO_PROXY", "127.0.0.0/8")],
            &[],
            false,
        ),
        (&[("http_proxy", nowhere), ("NO_PROXY", "*")], &[], false),
        (
            &[("http_proxy", &at), ("no_proxy", "127.0.0.2 0.0.1")],
            &[],
            true,
        ),
        (&[("no_proxy", "127.0.0.1")], &["--proxy", nowhere], false),
    ] {
        let run = site.run(&url).args(["--http-max-retries", "0"]);
        let run = run.args(options.iter().copied());
        let run = environment
            .iter()
            .fold(run, |run, (name, value)| run.env(*name, *value));
        let outcome = run.run();
        site.expect_installed(&outcome);
        let lines = proxy.lines();
        outcome.expect(lines.is_empty() != proxied, "through the proxy or not");
    }
    for (name, value) in [
        ("http_proxy", "socks5://user:secret@127.0.0.1:1"),
        ("all_proxy", "http://user:secret@:x"),
    ] {
        let outcome = site.run(&url).env(name, value).run();
        outcome.expect_exit(2).expect_stderr("proxy");
        outcome.expect_not_in_output("secret");
        // It does not matter where there is nothing to fetch.
        let bundle = site.file("bundle", &site.made.bytes);
        site.expect_installed(&site.run(&bundle).env(name, value).run());
    }
    site.run(&url)
        .args(["--proxy", "https://127.0.0.1:1"])
        .run()
        .expect_exit(2)
        .expect_stderr("--proxy");
}

impl Run {
    /// Roots that nothing is signed with, but roots.
    fn env_remove_roots(self, site: &Site) -> Self {
        if cfg!(feature = "tls") {
            let authority = https::Authority::new("Nobody's");
            return self.args(["--cacert", &site.file("nobody.pem", authority.pem())]);
        }
        self
    }
}

// ---- https -----------------------------------------------------------------------------------

#[cfg(not(feature = "tls"))]
mod https {
    use super::*;

    pub(super) struct Authority;

    impl Authority {
        pub(super) fn new(_: &str) -> Self {
            Self
        }

        pub(super) fn pem(&self) -> String {
            String::new()
        }
    }

    #[test]
    fn https_is_refused() {
        let site = Site::new();
        let outcome = site.run("https://127.0.0.1:1/b").run();
        outcome.expect_exit(2).expect_stderr("has no https");
        let redirect = Fault::Redirect("https://127.0.0.1:1/b".to_owned(), 302);
        site.server.fault(When::Always, redirect);
        let outcome = site.run(&site.server.url("/b")).run();
        outcome.expect_exit(4).expect_stderr("has no https");
    }
}

#[cfg(feature = "tls")]
mod https {
    use super::*;

    use rcgen::{
        date_time_ymd, BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa,
        Issuer, KeyPair, KeyUsagePurpose,
    };
    use rustls::crypto::ring;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::server::WebPkiClientVerifier;
    use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

    pub(super) struct Authority {
        pem: String,
        issuer: Issuer<'static, KeyPair>,
    }

    /// A certificate and its key, both PEM.
    struct Pair {
        certificate: String,
        key: String,
    }

    impl Authority {
        pub(super) fn new(name: &str) -> Self {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.distinguished_name.push(DnType::CommonName, name);
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
            let key = KeyPair::generate().unwrap();
            let pem = params.self_signed(&key).unwrap().pem();
            let issuer = Issuer::new(params, key);
            Self { pem, issuer }
        }

        pub(super) fn pem(&self) -> &str {
            &self.pem
        }

        /// For these names and years.
        fn sign(&self, names: &[&str], years: (i32, i32)) -> Pair {
            let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
            let mut params = CertificateParams::new(names).unwrap();
            params.not_before = date_time_ymd(years.0, 2, 28);
            params.not_after = date_time_ymd(years.1, 2, 28);
            params.extended_key_usages = vec![
                ExtendedKeyUsagePurpose::ServerAuth,
                ExtendedKeyUsagePurpose::ClientAuth,
            ];
            let key = KeyPair::generate().unwrap();
            let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
            Pair {
                certificate,
                key: key.serialize_pem(),
            }
        }

        fn usual(&self) -> Pair {
            self.sign(&["bundle.test", "127.0.0.1"], (2000, 2100))
        }
    }

    /// Speaks TLS in front of the recording server.
    struct Front {
        port: u16,
        connections: Arc<AtomicUsize>,
    }

    impl Front {
        fn start(server: &Server, pair: &Pair, clients: Option<&Authority>) -> Self {
            let provider = Arc::new(ring::default_provider());
            let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_safe_default_protocol_versions()
                .unwrap();
            let builder = match clients {
                None => builder.with_no_client_auth(),
                Some(authority) => {
                    let mut roots = RootCertStore::empty();
                    let root = CertificateDer::from_pem_slice(authority.pem.as_bytes());
                    roots.add(root.unwrap()).unwrap();
                    let roots = Arc::new(roots);
                    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                    builder.with_client_cert_verifier(verifier.build().unwrap())
                }
            };
            let chain = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
            let config = Arc::new(builder.with_single_cert(vec![chain], key).unwrap());
            let connections = Arc::new(AtomicUsize::new(0));
            let behind = server.port();
            let port = listen({
                let connections = Arc::clone(&connections);
                move |client| {
                    connections.fetch_add(1, Ordering::SeqCst);
                    client.set_nodelay(true).unwrap();
                    let session = ServerConnection::new(Arc::clone(&config)).unwrap();
                    let mut client = StreamOwned::new(session, client);
                    // The client or the server may end it at any time.
                    drop(relay(&mut client, behind, None, |_| ()));
                }
            });
            Self { port, connections }
        }

        fn url(&self, host: &str) -> String {
            format!("https://{host}:{}/b", self.port)
        }

        fn connections(&self) -> usize {
            self.connections.swap(0, Ordering::SeqCst)
        }
    }

    #[test]
    fn https_works_with_an_authority_of_ones_own() {
        let site = Site::new();
        let authority = Authority::new("Ours");
        let front = Front::start(&site.server, &authority.usual(), None);
        let cacert = site.file("ca.pem", authority.pem());
        let outcome = site
            .run(&front.url("127.0.0.1"))
            .args(["--cacert", &cacert])
            .run();
        site.expect_installed(&outcome);
        site.expect_kept_alive(front.connections());

        // By name, with more than one file, and one that holds more than one.
        let other = Authority::new("Other");
        let both = site.file("both.pem", other.pem().to_owned() + authority.pem());
        let resolve = format!("bundle.test:{}:127.0.0.1", front.port);
        for more in [&[&*cacert, &both][..], &[&both]] {
            let run = more.iter().fold(
                site.run(&front.url("bundle.test"))
                    .args(["--resolve", &resolve]),
                |run, path| run.args(["--cacert", path]),
            );
            site.expect_installed(&run.run());
        }

        // The system's, where the environment says that they lie.
        let run = site.run(&front.url("127.0.0.1"));
        site.expect_installed(&run.env("SSL_CERT_FILE", &both).run());
    }

    #[test]
    fn a_certificate_that_is_not_trusted_ends_it_at_once() {
        let site = Site::new();
        let (ours, other) = (Authority::new("Ours"), Authority::new("Other"));
        let cacert = site.file("ca.pem", ours.pem());
        let local = &["127.0.0.1"];
        for (pair, reasons) in [
            (other.usual(), &["authority", "--cacert"][..]),
            (
                ours.sign(&["other.test", "*.other.test"], (2000, 2100)),
                &["not one for 127.0.0.1", "other.test"],
            ),
            (
                ours.sign(local, (2000, 2001)),
                &["expired on 2001-02-28", "the clock here says 20"],
            ),
            (
                ours.sign(local, (2090, 2100)),
                &[
                    "valid from 2090-02-28T00:00:00Z on",
                    "the clock here says 20",
                    "set the clock",
                ],
            ),
        ] {
            let front = Front::start(&site.server, &pair, None);
            let url = front.url("127.0.0.1");
            let outcome = site.run(&url).args(["--cacert", &cacert]).run();
            outcome.expect_exit(3).expect_stderr("after 1 try");
            for reason in reasons {
                outcome.expect_stderr(reason);
            }
            assert_eq!(front.connections(), 1, "no use in trying again");
        }
        assert!(site.server.requests().is_empty());
        assert!(!site.path("target").exists());
    }

    /// C01: a clock that is behind is helped by a floor, and no certificate passes that expired by it.
    #[test]
    fn a_floor_of_the_time_counts_for_servers_too() {
        let site = Site::new();
        let ours = Authority::new("Ours");
        let cacert = site.file("ca.pem", ours.pem());
        let front = Front::start(&site.server, &ours.sign(&["127.0.0.1"], (2090, 2100)), None);
        let run = |floor| {
            let run = site
                .run(&front.url("127.0.0.1"))
                .args(["--cacert", &cacert]);
            run.args(["--time-floor", floor]).run()
        };
        run("2095-01-01").expect_exit(0);
        run("2101-01-01")
            .expect_exit(3)
            .expect_stderr("expired on 2100-02-28T00:00:00Z")
            .expect_stderr("it is 2101-01-01T00:00:00Z at least");
    }

    #[test]
    fn client_certificates_are_shown() {
        let site = Site::new();
        let (ours, theirs) = (Authority::new("Ours"), Authority::new("Theirs"));
        let front = Front::start(&site.server, &ours.usual(), Some(&theirs));
        let cacert = site.file("ca.pem", ours.pem());
        let pair = theirs.sign(&["device"], (2000, 2100));
        let cert = site.file("cert.pem", &pair.certificate);
        let key = site.file("key.pem", &pair.key);
        let both = site.file("cert-and-key.pem", pair.key + &pair.certificate);
        let run = || {
            site.run(&front.url("127.0.0.1"))
                .args(["--cacert", &cacert])
        };
        let outcome = run().args(["--cert", &cert, "--key", &key]).run();
        site.expect_installed(&outcome);
        site.expect_kept_alive(front.connections());
        site.expect_installed(&run().args(["--cert", &both]).run());
        front.connections();

        let outcome = run().run();
        outcome.expect_exit(3).expect_stderr("--cert");
        outcome.expect_stderr("after 1 try");
        let unknown = ours.sign(&["device"], (2000, 2100));
        let unknown = site.file("unknown.pem", unknown.key + &unknown.certificate);
        let outcome = run().args(["--cert", &unknown]).run();
        outcome.expect_exit(3);
        outcome.expect_stderr("does not accept the client certificate");
        assert_eq!(front.connections(), 2, "one for each run");
    }

    #[test]
    fn files_that_cannot_be_used_are_a_usage_error() {
        let site = Site::new();
        let authority = Authority::new("Ours");
        let (pair, other) = (authority.usual(), authority.usual());
        let good = site.file("good.pem", authority.pem());
        let cert = site.file("cert.pem", &pair.certificate);
        let key = site.file("key.pem", &pair.key);
        let cut = &authority.pem()[..authority.pem().len() / 2];
        let damaged = authority.pem().replacen('M', "!", 1);
        let junk = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let files = [
            ("empty", String::new()),
            ("text", "hello\n".to_owned()),
            ("cut", cut.to_owned()),
            ("damaged", damaged),
            ("junk", junk.to_owned()),
            ("other-key", other.key),
        ]
        .map(|(name, text)| (name, site.file(name, text)));
        let file = |name: &str| -> &str {
            let found = files.iter().find(|(known, _)| *known == name);
            found.map_or("none", |(_, path)| path)
        };
        for (options, reason) in [
            (vec!["--cacert", "none"], "none"),
            (vec!["--cacert", file("empty")], "empty"),
            (vec!["--cacert", file("text")], "text"),
            (vec!["--cacert", file("cut")], "cut"),
            (vec!["--cacert", file("damaged")], "damaged"),
            (vec!["--cacert", file("junk")], "junk"),
            (vec!["--cacert", &good, "--cacert", file("empty")], "empty"),
            (vec!["--cacert", &key], "key.pem"),
            (vec!["--cert", &cert], "--key"),
            (vec!["--cert", &cert, "--key", "none"], "none"),
            (vec!["--cert", &cert, "--key", &cert], "cert.pem"),
            (
                vec!["--cert", &cert, "--key", file("other-key")],
                "other-key",
            ),
            (vec!["--cert", file("junk"), "--key", &key], "for https"),
            (vec!["--key", &key], "--cert"),
        ] {
            for scheme in ["http", "https"] {
                let url = format!("{scheme}://127.0.0.1:1/b");
                let run = site.run(&url).args(options.clone());
                let run = run.env("SSL_CERT_FILE", &good);
                let outcome = run.run();
                outcome.expect_exit(2).expect_stderr(reason);
                outcome.expect_not_in_output("panicked");
            }
        }
        let run = site.run("https://127.0.0.1:1/b");
        let outcome = run.env("SSL_CERT_FILE", file("empty")).run();
        outcome.expect_exit(2).expect_stderr("empty");
    }

    #[test]
    fn a_server_without_tls_is_named_as_such() {
        let site = Site::new();
        let url = site.server.url("/b").replace("http:", "https:");
        let run = site.run(&url).env_remove_roots(&site);
        let outcome = run.args(["--http-max-retries", "1"]).run();
        outcome.expect_exit(3).expect_stderr("does not speak TLS");
        // And one that says nothing at all.
        let port = listen(|stream| {
            thread::sleep(Duration::from_secs(20));
            drop(stream);
        });
        let run = site.run(&format!("https://127.0.0.1:{port}/b"));
        let run = run
            .env_remove_roots(&site)
            .args(["--http-max-retries", "0"]);
        let outcome = run.args(["--connect-timeout", "300ms"]).run();
        outcome.expect_exit(3).expect_stderr("connect timeout");
        let soon = outcome.elapsed < Duration::from_secs(5);
        outcome.expect(soon, "the connect timeout is for TLS too");
    }

    #[test]
    fn a_body_cut_in_tls_is_completed() {
        let site = Site::new();
        let authority = Authority::new("Ours");
        let front = Front::start(&site.server, &authority.usual(), None);
        let cacert = site.file("ca.pem", authority.pem());
        site.server.fault(When::Every(3), Fault::ShortBody(3000));
        let url = front.url("127.0.0.1");
        let outcome = site.run(&url).args(["--cacert", &cacert]).run();
        site.expect_installed(&outcome);
        assert!(front.connections() > 2);
    }

    #[test]
    fn https_goes_through_a_tunnel() {
        let site = Site::new();
        let authority = Authority::new("Ours");
        let front = Front::start(&site.server, &authority.usual(), None);
        let cacert = site.file("ca.pem", authority.pem());
        let proxy = Forward::start(Some("Basic dTpw"), false);
        let url = front.url("bundle.test");
        let asked = format!("CONNECT bundle.test:{} HTTP/1.1", front.port);
        let at = proxy.with_user("u:p");
        for (name, value) in [
            ("https_proxy", &*at),
            ("HTTPS_PROXY", &at),
            ("ALL_PROXY", &at),
        ] {
            let run = site.run(&url).args(["--cacert", &cacert]);
            let outcome = run.env("http_proxy", "http://127.0.0.1:1");
            let outcome = outcome.env(name, value).run();
            site.expect_installed(&outcome);
            let lines = proxy.lines();
            assert!(lines.iter().all(|line| *line == asked), "{lines:?}");
            site.expect_kept_alive(lines.len());
        }
        for request in site.server.requests() {
            assert_eq!(request.header("proxy-authorization"), None);
        }

        let closed = Forward::start(None, true);
        let run = site.run(&url).args(["--cacert", &cacert]);
        let outcome = run.args(["--proxy", &closed.url()]).run();
        outcome.expect_exit(4).expect_stderr("proxy refuses");
        assert_eq!(closed.lines().len(), 1);
    }

    #[test]
    fn a_redirect_between_schemes_is_one_to_another_origin() {
        let site = Site::new();
        let authority = Authority::new("Ours");
        let front = Front::start(&site.server, &authority.usual(), None);
        let cacert = site.file("ca.pem", authority.pem());
        site.server.set_file("/to-tls", &b"moved"[..]);
        site.server.fault(
            When::matching(|request| request.path == "/to-tls"),
            Fault::Redirect(front.url("127.0.0.1"), 301),
        );
        let run = site.run(&site.server.url("/to-tls"));
        let run = run.args(["--cacert", &cacert, "-H", "X-Token: secret"]);
        let outcome = run.run();
        site.expect_installed(&outcome);
        for request in site.server.requests() {
            let token = request.header("x-token");
            assert_eq!(token.is_some(), request.path == "/to-tls", "{request:?}");
        }
    }
}
