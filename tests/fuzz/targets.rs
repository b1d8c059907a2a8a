//! What is fuzzed: one function for each kind of bytes that come from outside, and the seeds that
//! it starts from, which are cut from the golden vectors.
//!
//! A target may refuse its input; it must not panic, hang, or ask for memory by what the input says.
//! Both the smoke run (`main.rs`) and the cargo-fuzz targets (`fuzz_targets/`) call these.

use std::fs;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, Sender};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use reflash::internal::clock::{Clock, Time};
use reflash::internal::connect::Network;
use reflash::internal::http::{Client, Counters, Settings};
use reflash::internal::proxy::{Exceptions, Proxies, Proxy};
use reflash::internal::stlv::{self, Atoms, Scan};
use reflash::internal::tls::Tls;
use reflash::internal::trust::{describe, Roots};
use reflash::internal::{rugix, xz};

/// A target: its name, its runs in the smoke test, what it does with bytes, where its seeds come
/// from.
pub struct Target {
    pub name: &'static str,
    pub runs: u32,
    pub run: fn(&[u8]),
    pub seeds: fn() -> Vec<Vec<u8>>,
}

pub const TARGETS: [Target; 8] = [
    Target {
        name: "stlv",
        runs: 300_000,
        run: stlv,
        seeds: bundles,
    },
    Target {
        name: "header",
        runs: 300_000,
        run: header,
        seeds: headers,
    },
    Target {
        name: "index",
        runs: 200_000,
        run: index,
        seeds: payload_headers,
    },
    Target {
        name: "xz",
        runs: 100_000,
        run: unxz,
        seeds: xz_streams,
    },
    Target {
        name: "cms",
        runs: 20_000,
        run: cms,
        seeds: signatures,
    },
    Target {
        name: "certificate",
        runs: 15_000,
        run: certificate,
        seeds: certificates,
    },
    Target {
        name: "block_index",
        runs: 300_000,
        run: block_index,
        seeds: block_indexes,
    },
    Target {
        name: "http_head",
        runs: 10_000,
        run: http_head,
        seeds: http_heads,
    },
];

/// Runs a target by its name.
pub fn run(name: &str, bytes: &[u8]) {
    for target in TARGETS.iter().filter(|target| target.name == name) {
        (target.run)(bytes);
    }
}

/// Most plain bytes of a stream: a block of usual size.
const XZ_BOUND: usize = 256 << 10;

// ---- targets ---------------------------------------------------------------------------------

fn stlv(bytes: &[u8]) {
    for limit in [64, 4096, 128 << 10] {
        if let Ok(Scan::Need(need)) = stlv::whole(bytes, 0, limit) {
            assert!(need > bytes.len() && need <= limit + stlv::MAX_HEAD);
        }
    }
    let mut open = vec![Atoms::new(bytes, 0)];
    while let Some(atoms) = open.last_mut() {
        match atoms.next_atom() {
            Ok(Some(atom)) => {
                black_box((atom.text().is_ok(), atom.boolean().is_ok()));
                if let Ok(children) = atom.children() {
                    open.push(children);
                }
                assert!(open.len() <= stlv::MAX_DEPTH + 1);
            }
            _ => drop(open.pop()),
        }
    }
}

fn header(bytes: &[u8]) {
    drop(black_box(rugix::parse_header(bytes, 5)));
    drop(black_box(rugix::parse_signatures(bytes, 5)));
    drop(black_box(rugix::parse_signed_metadata(bytes)));
}

/// Four bytes of the size of the data, then a payload header.
fn index(bytes: &[u8]) {
    let Some((size, raw)) = bytes.split_first_chunk::<4>() else {
        return;
    };
    let data = 1000..1000 + u64::from(u32::from_be_bytes(*size));
    if let Ok(Some(index)) = rugix::parse_payload_header(raw, 100, data.clone()) {
        // What the type promises.
        let mut at = data.start;
        for stored in index.blocks().filter_map(|block| block.stored()) {
            assert_eq!(stored.start, at);
            at = stored.end;
        }
        assert_eq!(at, data.end);
        let (least, most) = index.size_bounds();
        assert!(least <= most);
    }
}

fn unxz(bytes: &[u8]) {
    let mut plain = Vec::new();
    if xz::Decoder::new()
        .decompress(bytes, XZ_BOUND, &mut plain)
        .is_ok()
    {
        assert!(plain.len() <= XZ_BOUND);
    }
    assert!(plain.capacity() <= 2 * XZ_BOUND);
}

const HEADER: &[u8] = b"no header that was signed";

fn clock() -> Clock {
    Clock::standing(Time(1_800_000_000), Time(0))
}

/// Against the roots of the vectors: nothing that was changed may pass for signed.
fn cms(bytes: &[u8]) {
    static ROOTS: OnceLock<Roots> = OnceLock::new();
    let roots = ROOTS.get_or_init(|| {
        let files = ["root", "other"].map(|name| vectors().join(format!("certs/{name}.crt")));
        Roots::load(&files, clock()).unwrap_or_else(|bad| panic!("{bad:?}"))
    });
    assert!(roots.check(&[bytes], HEADER).is_err());
    drop(black_box(describe(bytes, HEADER, Some(roots))));
}

/// As a root, so that its key is used: the signatures of the vectors are checked with it.
fn certificate(bytes: &[u8]) {
    static SIGNATURES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    let Ok(roots) = Roots::of([(PathBuf::new(), bytes.to_vec())], clock()) else {
        return;
    };
    for signature in SIGNATURES.get_or_init(signatures) {
        assert!(roots.check(&[signature], HEADER).is_err());
    }
}

fn block_index(bytes: &[u8]) {
    if let Ok(index) = rugix::parse_block_index(bytes) {
        assert_eq!(index.blocks().count(), index.sizes.len());
    }
}

/// The answer to a request for 100 bytes, from a server that then closes the connection. It is also
/// the proxy for everything, so that no changed redirect leads elsewhere.
fn http_head(bytes: &[u8]) {
    static SERVER: OnceLock<(Mutex<Sender<Vec<u8>>>, u16)> = OnceLock::new();
    let (answers, port) = SERVER.get_or_init(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap_or_else(|e| panic!("{e}"));
        let port = listener
            .local_addr()
            .unwrap_or_else(|e| panic!("{e}"))
            .port();
        let (sender, receiver) = channel::<Vec<u8>>();
        std::thread::spawn(move || {
            let mut answer = Vec::new();
            for stream in listener.incoming().flatten() {
                // The newest: an answer may be asked for several times, by redirects.
                answer = receiver.try_iter().last().unwrap_or(answer);
                drop(serve(stream, &answer));
            }
        });
        (Mutex::new(sender), port)
    });
    let sender = answers.lock().unwrap_or_else(|e| panic!("{e}"));
    sender
        .send(bytes.to_vec())
        .unwrap_or_else(|e| panic!("{e}"));
    let proxy = Proxy::parse(&format!("http://127.0.0.1:{port}")).ok();
    let proxies = Proxies {
        http: proxy.clone(),
        https: proxy,
        except: Exceptions::default(),
    };
    let settings = Settings {
        connect_timeout: Duration::from_secs(1),
        stall_timeout: Duration::from_secs(1),
        headers: Vec::new(),
        network: Arc::new(Network::new(Vec::new(), proxies, Tls::default())),
    };
    let mut client = Client::new(
        "http://fuzz.test/b",
        &settings,
        &Arc::new(Counters::default()),
    );
    if let Ok(mut body) = client.get(&(0..100)) {
        let mut found = Vec::new();
        while let Ok(1..) = body.read_some(&mut found, 64) {}
        assert!(found.len() <= 100);
    }
}

fn serve(mut stream: TcpStream, answer: &[u8]) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.ends_with(b"\r\n\r\n") {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        request.extend(buffer.iter().take(read));
    }
    stream.write_all(answer)
}

// ---- seeds -----------------------------------------------------------------------------------

fn vectors() -> PathBuf {
    // The folder of the package that includes this file: the crate itself, or tests/fuzz.
    let base = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = base.join("tests/data/vectors");
    if own.exists() {
        own
    } else {
        base.join("../data/vectors")
    }
}

/// All files below a folder of the vectors, with this extension, up to a size.
fn files(folder: &str, extension: &str, limit: usize) -> Vec<Vec<u8>> {
    let folder = vectors().join(folder);
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == extension));
    paths.sort();
    let read = paths.iter().filter_map(|path| fs::read(path).ok());
    let all: Vec<_> = read.filter(|bytes| bytes.len() <= limit).collect();
    assert!(!all.is_empty(), "{}", folder.display());
    all
}

fn bundles() -> Vec<Vec<u8>> {
    let mut all = files("hostile", "rugixb", 8 << 10);
    all.extend(files("bundles", "rugixb", 12 << 10));
    all
}

/// The atoms of bundles, by a reader that only looks for tags.
fn atoms(tag: u32) -> Vec<Vec<u8>> {
    let start = [&tag.to_be_bytes()[..], &[0x40]].concat();
    let end = [&tag.to_be_bytes()[..], &[0x00]].concat();
    let mut all = Vec::new();
    for bundle in files("bundles", "rugixb", 64 << 10) {
        let find = |what: &[u8]| bundle.windows(5).position(|window| window == what);
        if let (Some(from), Some(to)) = (find(&start), find(&end)) {
            all.push(bundle.get(from..to + 5).unwrap_or_default().to_vec());
        }
    }
    assert!(!all.is_empty(), "{tag:08x}");
    all
}

fn headers() -> Vec<Vec<u8>> {
    let mut all = atoms(0x49af_6433);
    all.extend(atoms(0xa839_36f1));
    all.extend(files("certs", "bin", 4096));
    all
}

fn payload_headers() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for raw in atoms(0x0959_ca75) {
        // Without compression the sizes are right for one of these.
        for size in [0u32, 8000, 16384, 80901, 104_460] {
            all.push([&size.to_be_bytes()[..], &raw].concat());
        }
    }
    all
}

fn xz_streams() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for bundle in files("bundles", "rugixb", 64 << 10) {
        let magic = b"\xfd7zXZ\0";
        let starts = bundle
            .windows(6)
            .enumerate()
            .filter(|(_, window)| window == magic);
        let starts: Vec<usize> = starts.map(|(at, _)| at).collect();
        for pair in starts.windows(2) {
            if let [from, to] = pair {
                all.push(bundle.get(*from..*to).unwrap_or_default().to_vec());
            }
        }
    }
    all.retain(|stream| stream.len() < 4096);
    all
}

fn signatures() -> Vec<Vec<u8>> {
    let segments = atoms(0xa839_36f1);
    let all = segments
        .iter()
        .filter_map(|segment| rugix::parse_signatures(segment, 0).ok());
    all.flatten().map(<[u8]>::to_vec).collect()
}

/// The certificates of the vectors, out of their PEM and out of the signatures that carry them.
fn certificates() -> Vec<Vec<u8>> {
    use rustls_pki_types::pem::PemObject;
    use rustls_pki_types::CertificateDer;
    let files = files("certs", "crt", 16 << 10);
    let parsed = files
        .iter()
        .filter_map(|pem| CertificateDer::from_pem_slice(pem).ok());
    parsed.map(|certificate| certificate.to_vec()).collect()
}

fn block_indexes() -> Vec<Vec<u8>> {
    files("index", "rugix-block-index", 16 << 10)
}

fn http_heads() -> Vec<Vec<u8>> {
    let body = "x".repeat(100);
    let heads = [
        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-99/5000\r\nContent-Length: 100\r\nETag: \"a\"\r\nLast-Modified: Mon, 30 Nov 2026 00:00:00 GMT\r\n\r\n",
        "HTTP/1.1 206 OK\r\ncontent-range: bytes 0-199/*\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\nConnection: close\r\n\r\n",
        "HTTP/1.0 200 OK\r\n\r\n",
        "HTTP/1.1 302 Found\r\nLocation: http://fuzz.test/c\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 503 Busy\r\nRetry-After: 120\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes */50\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 206 OK\r\nContent-Range: bytes 0-99/100\r\nContent-Length: 100\r\nContent-Encoding: gzip\r\n\r\n",
    ];
    heads
        .iter()
        .map(|head| format!("{head}{body}").into_bytes())
        .collect()
}
