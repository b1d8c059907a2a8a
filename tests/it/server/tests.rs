//! The server against raw sockets: what the other tests lean on must itself be right.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::{Fault, Server, When};

fn server() -> Server {
    let file: Vec<u8> = (0..=255).collect();
    Server::start([("/f", file)])
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let limit = Some(Duration::from_secs(20));
    stream.set_read_timeout(limit).unwrap();
    stream
}

fn ask(mut stream: &TcpStream, path: &str, headers: &str) {
    let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).unwrap();
}

/// The head and as much body as Content-Length promises.
fn answer(mut stream: &TcpStream) -> (String, Vec<u8>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let size = head.split("Content-Length: ").nth(1).unwrap();
    let size = size.split('\r').next().unwrap().parse().unwrap();
    let mut body = vec![0; size];
    stream.read_exact(&mut body).unwrap();
    (head, body)
}

/// Everything until the connection ends.
fn rest(mut stream: &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn ranges_over_one_connection() {
    let server = server();
    let stream = connect(&server);
    for (range, body, content_range) in [
        ("10-19", 10..=19, "bytes 10-19/256"),
        ("250-", 250..=255, "bytes 250-255/256"),
        ("-3", 253..=255, "bytes 253-255/256"),
        ("-999", 0..=255, "bytes 0-255/256"),
        ("200-999", 200..=255, "bytes 200-255/256"),
    ] {
        ask(&stream, "/f", &format!("Range: bytes={range}\r\n"));
        let (head, found) = answer(&stream);
        assert!(
            head.starts_with("HTTP/1.1 206 Partial Content\r\n"),
            "{head}"
        );
        let line = format!("Content-Range: {content_range}\r\n");
        assert!(head.contains(&line), "{head}");
        assert!(head.contains("ETag: \"100-0\"\r\n"), "{head}");
        assert_eq!(found, body.collect::<Vec<u8>>());
    }
    ask(&stream, "/f", "Range: bytes=256-\r\n");
    let (head, _) = answer(&stream);
    assert!(head.starts_with("HTTP/1.1 416 "), "{head}");
    assert!(head.contains("Content-Range: bytes */256\r\n"), "{head}");
    ask(&stream, "/f?query", "");
    let (head, body) = answer(&stream);
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert_eq!(body.len(), 256);
    ask(&stream, "/g", "Connection: close\r\n");
    let (head, _) = answer(&stream);
    assert!(head.starts_with("HTTP/1.1 404 Not Found\r\n"), "{head}");
    assert!(rest(&stream).is_empty());

    assert_eq!((server.connections(), server.peak_connections()), (1, 1));
    let requests = server.requests();
    let statuses: Vec<_> = requests.iter().map(|r| r.status).collect();
    assert_eq!(statuses, [206, 206, 206, 206, 206, 416, 200, 404]);
    assert_eq!(requests[0].range, Some((10, Some(19))));
    assert_eq!(requests[1].range, Some((250, None)));
    assert_eq!(requests[2].range, Some((253, Some(255))));
    assert_eq!(requests[0].bytes(), Some(10..20));
    assert_eq!(requests[0].body_bytes, 10);
    assert_eq!(requests[6].query.as_deref(), Some("query"));
    assert_eq!(requests[7].header("connection"), Some("close"));
    server.assert_well_behaved_client();
    server.reset_log();
    assert_eq!((server.requests().len(), server.body_bytes()), (0, 0));
}

#[test]
fn bad_requests_are_refused_and_end_the_connection() {
    for (request, status) in [
        ("GET /f HTTP/1.1\r\n\r\n", 400),
        ("GET /f HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", 400),
        (
            "GET /f HTTP/1.1\r\nHost: x\r\nRange: bytes=0-1,4-5\r\n\r\n",
            400,
        ),
        (
            "GET /f HTTP/1.1\r\nHost: x\r\nRange: bytes=5-4\r\n\r\n",
            400,
        ),
        ("GET /f HTTP/1.1\r\nHost: x\r\nRange: 0-1\r\n\r\n", 400),
        ("GET /f HTTP/1.1\r\nHost: x\r\nRange: bytes=-\r\n\r\n", 400),
        (
            "GET /f HTTP/1.1\r\nHost: x\r\nRange: bytes=+1-2\r\n\r\n",
            400,
        ),
        (
            "GET /f HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx",
            400,
        ),
        ("GET /f HTTP/1.1\r\nHost : x\r\n\r\n", 400),
        ("GET  /f HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        ("GET /f HTTP/1.1\nHost: x\n\n", 400),
        ("GET /f HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (
            "POST /f HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            405,
        ),
    ] {
        let server = server();
        let mut stream = connect(&server);
        stream.write_all(request.as_bytes()).unwrap();
        let (head, _) = answer(&stream);
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")),
            "{request:?}: {head}"
        );
        let mut end = Vec::new();
        // A reset is as good an end: the body of the one request stays unread.
        drop(stream.read_to_end(&mut end));
        assert!(end.is_empty());
        assert_eq!(server.requests()[0].refused.is_some(), status != 405);
    }
}

#[test]
fn faults_bend_the_body() {
    let server = server();
    let ranged = "Range: bytes=10-19\r\n";
    let of = |fault: Fault| {
        server.clear_rules();
        server.fault(When::Always, fault);
        let stream = connect(&server);
        ask(&stream, "/f", ranged);
        answer(&stream)
    };
    assert_eq!(of(Fault::IgnoreRange).1.len(), 256);
    let (head, body) = of(Fault::WrongRange(-3));
    assert!(head.contains("Content-Range: bytes 7-16/256"), "{head}");
    assert_eq!(body[0], 7);
    let (head, body) = of(Fault::WiderRange(20));
    assert!(head.contains("Content-Range: bytes 0-39/256"), "{head}");
    assert_eq!(body.len(), 40);
    assert_eq!(of(Fault::NarrowRange(4)).1, [10, 11, 12, 13]);
    let (head, body) = of(Fault::LyingRange);
    assert!(head.contains("Content-Range: bytes 10-19/256"), "{head}");
    assert_eq!(body[0], 10 ^ 0x55);
    assert_eq!(of(Fault::FlipByte(1)).1[..3], [10, 10, 12]);
    let (head, _) = of(Fault::ChangedSize(-6));
    assert!(head.contains("Content-Range: bytes 10-19/250"), "{head}");
    let (head, _) = of(Fault::NoValidators);
    assert!(!head.contains("ETag"), "{head}");
    let (head, body) = of(Fault::NoRanges);
    assert!(head.starts_with("HTTP/1.0 200 OK\r\n"), "{head}");
    assert!(!head.contains("Accept-Ranges"), "{head}");
    assert_eq!(body.len(), 256);
    let (head, _) = of(Fault::Status(503, vec![("Retry-After".into(), "0".into())]));
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    assert!(head.contains("Retry-After: 0\r\n"), "{head}");
    let (head, _) = of(Fault::Redirect("/g".into(), 307));
    assert!(head.contains("Location: /g\r\n"), "{head}");
    let every = Duration::from_micros(1);
    assert_eq!(of(Fault::Drip { bytes: 3, every }).1.len(), 10);
}

#[test]
fn faults_break_the_connection() {
    let server = server();
    let of = |fault: Fault| {
        server.clear_rules();
        server.fault(When::Always, fault);
        let mut stream = connect(&server);
        ask(&stream, "/f", "");
        let mut bytes = Vec::new();
        let end = stream.read_to_end(&mut bytes).map_err(|e| e.kind());
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let body = text.find("\r\n\r\n").map_or(0, |at| bytes.len() - at - 4);
        (end, text, body)
    };
    let (end, head, body) = of(Fault::ShortBody(100));
    assert_eq!((end.is_ok(), body), (true, 100));
    assert!(head.contains("Content-Length: 256\r\n"));
    let (end, ..) = of(Fault::ResetBeforeHeaders);
    assert_eq!(end, Err(ErrorKind::ConnectionReset));
    let (end, ..) = of(Fault::ResetInBody(10));
    assert_eq!(end, Err(ErrorKind::ConnectionReset));
    let (end, head, body) = of(Fault::CloseEachTime);
    assert_eq!((end.is_ok(), body), (true, 256));
    assert!(head.contains("Connection: close\r\n"));
    let (_, head, body) = of(Fault::CloseAfterResponseSilently);
    assert_eq!(body, 256);
    assert!(!head.contains("Connection"));
    let (_, head, body) = of(Fault::NoContentLength);
    assert_eq!(body, 256);
    assert!(!head.contains("Content-Length"));
    let (_, head, _) = of(Fault::ChunkedCut);
    assert!(head.contains("Transfer-Encoding: chunked\r\n"));
    assert!(!head.ends_with("0\r\n\r\n"));
    assert_eq!(server.requests()[1].status, 0);
}

#[test]
fn chunked_and_stray_bytes_keep_the_connection() {
    let server = server();
    server.fault(When::Nth(0), Fault::LongBody(b"stray".to_vec()));
    server.fault(When::Nth(1), Fault::Chunked);
    server.fault(When::Nth(2), Fault::CloseEachTime);
    let stream = connect(&server);
    for _ in 0..3 {
        ask(&stream, "/f", "Range: bytes=65-67\r\n");
    }
    let all = String::from_utf8(rest(&stream)).unwrap();
    let parts: Vec<_> = all.split("HTTP/1.1 206").collect();
    assert!(parts[1].ends_with("\r\n\r\nABCstray"), "{all}");
    assert!(parts[2].ends_with("\r\n\r\n3\r\nABC\r\n0\r\n\r\n"), "{all}");
    assert!(parts[3].ends_with("\r\n\r\nABC"), "{all}");
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_stall_lasts_until_the_server_ends() {
    let server = server();
    server.fault(When::Nth(0), Fault::StallBeforeHeaders);
    server.fault(When::Nth(1), Fault::Stall { after: 7 });
    let (first, mut second) = (connect(&server), connect(&server));
    ask(&first, "/f", "");
    while server.requests().is_empty() {
        std::thread::yield_now();
    }
    ask(&second, "/f", "");
    while server.body_bytes() < 7 {
        std::thread::yield_now();
    }
    let short = Some(Duration::from_millis(20));
    first.set_read_timeout(short).unwrap();
    let silence = (&first).read(&mut [0]).unwrap_err().kind();
    assert_eq!(silence, ErrorKind::WouldBlock);
    assert_eq!(server.peak_connections(), 2);
    drop(server);
    assert!(rest(&first).is_empty());
    let mut bytes = Vec::new();
    second.read_to_end(&mut bytes).unwrap();
    assert!(bytes.ends_with(&[0, 1, 2, 3, 4, 5, 6]));
}

#[test]
fn a_closed_connection_does_not_count_for_the_peak() {
    let server = server();
    for _ in 0..50 {
        let stream = connect(&server);
        ask(&stream, "/f", "");
        answer(&stream);
    }
    assert_eq!((server.connections(), server.peak_connections()), (50, 1));
}

#[test]
fn one_connection_at_a_time() {
    let server = server();
    server.limit_connections(1);
    let first = connect(&server);
    ask(&first, "/f", "");
    answer(&first);
    let second = connect(&server);
    ask(&second, "/f", "");
    assert_eq!(server.requests().len(), 1);
    drop(first);
    answer(&second);
    assert_eq!(server.requests()[1].connection, 1);
}

#[test]
fn a_new_file_has_new_validators() {
    let server = server();
    server.set_file("/f", b"other".as_slice());
    let stream = connect(&server);
    let range = "Range: bytes=0-1\r\nIf-Range: \"100-0\"\r\n";
    ask(&stream, "/f", range);
    let (head, body) = answer(&stream);
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("ETag: \"5-1\"\r\n"), "{head}");
    assert_eq!(body, b"other");
}

#[test]
fn a_file_on_disk_is_served() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().write_all(&[7; 200_000]).unwrap();
    let server = Server::start([("/big", file.path())]);
    let stream = connect(&server);
    ask(&stream, "/big", "Range: bytes=1-150000\r\n");
    assert_eq!(answer(&stream).1, [7; 150_000]);
}
