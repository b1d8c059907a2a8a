//! Proxies: which request goes to which one, and what it is told.
//!
//! The rules are curl's. A plain request goes to a proxy as such, with the whole URL in its first
//! line; for https the proxy is asked for a connection (CONNECT) that TLS then runs through. Only
//! what is said is here, the sockets are in `connect.rs`.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::IpAddr;

/// Most bytes of a proxy's answer to CONNECT.
const MAX_PROXY_HEAD: usize = 16 << 10;

/// Where curl looks for a proxy without a port.
const PROXY_PORT: u16 = 1080;

/// Why there is no way through a proxy.
#[derive(Debug)]
pub enum Problem {
    /// It refuses.
    Refused(String),
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

/// A proxy to send requests to.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    /// Name or address, that of IPv6 in brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The value of Proxy-Authorization.
    authorization: Option<String>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({}:{})", self.host, self.port)
    }
}

impl Proxy {
    /// Parses `[http://][user:password@]host[:port]`. Errors do not repeat it: it may hold secrets.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        if !scheme.eq_ignore_ascii_case("http") {
            return Err("only http proxies are supported");
        }
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        let malformed = "it is no proxy such as http://host:port";
        // What stands behind the brackets of an IPv6 address, or behind the name.
        let at = host.rfind(']').map_or(0, |at| at + 1);
        let (host, port) = match host.get(at..).and_then(|rest| rest.rfind(':')) {
            Some(colon) => {
                let (host, port) = host.split_at(at + colon);
                let port = port.get(1..).and_then(|port| port.parse().ok());
                (host, port.ok_or(malformed)?)
            }
            None => (host, PROXY_PORT),
        };
        let fits = |c: char| c.is_ascii_alphanumeric() || "-._[]:".contains(c);
        if host.is_empty() || !host.chars().all(fits) {
            return Err(malformed);
        }
        Ok(Self {
            host: host.to_owned(),
            port,
            authorization: user.map(basic),
        })
    }
}

/// Which requests go to which proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxies {
    /// For plain http.
    pub http: Option<Proxy>,
    /// For https.
    pub https: Option<Proxy>,
    /// Hosts that are reached without.
    pub except: Exceptions,
}

impl Proxies {
    /// The proxy for a host, if there is one.
    pub fn of(&self, https: bool, host: &str) -> Option<&Proxy> {
        let proxy = if https { &self.https } else { &self.http };
        proxy.as_ref().filter(|_| !self.except.has(host))
    }
}

/// Hosts that are reached without proxy, as `NO_PROXY` lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exceptions(Vec<String>);

impl Exceptions {
    /// Names (with all names below them), addresses, networks such as `10.0.0.0/8`, or `*`, between
    /// commas or spaces.
    pub fn parse(text: &str) -> Self {
        let words = text.split(|c: char| c == ',' || c.is_ascii_whitespace());
        let words = words.filter(|word| !word.is_empty());
        Self(words.map(str::to_ascii_lowercase).collect())
    }

    fn has(&self, host: &str) -> bool {
        let address = parse_address(host);
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        self.0.iter().any(|word| match address {
            _ if word == "*" => true,
            Some(address) => in_network(address, word),
            None => {
                let word = word.trim_start_matches('.').trim_end_matches('.');
                let before = host.strip_suffix(word);
                !word.is_empty() && before.is_some_and(|it| it.is_empty() || it.ends_with('.'))
            }
        })
    }
}

/// Whether an address is `network`, or lies in it if that has a prefix length.
fn in_network(address: IpAddr, network: &str) -> bool {
    let (network, length) = match network.split_once('/') {
        Some((network, length)) => (network, length.parse::<u32>().ok()),
        None => (network, Some(128)),
    };
    let Some((network, length)) = parse_address(network).zip(length) else {
        return false;
    };
    // Both as numbers of 128 bits, filled up below.
    let (a, b) = match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            (u128::from(a.to_bits()) << 96, u128::from(b.to_bits()) << 96)
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits()),
        _ => return false,
    };
    (a ^ b).leading_zeros() >= length.min(128)
}

/// The value of an Authorization header for `user:password` as it stands in a URL.
pub fn basic(user_info: &str) -> String {
    let mut plain = Vec::new();
    let mut rest = user_info.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        let code = behind.get(..2).filter(|_| first == b'%');
        let code = code.and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = behind.get(2..).unwrap_or_default();
            }
            None => {
                plain.push(first);
                rest = behind;
            }
        }
    }
    if !user_info.contains(':') {
        plain.push(b':');
    }
    format!("Basic {}", base64(&plain))
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let at = |i: usize| u32::from(group.get(i).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for i in 0..4 {
            let digit = DIGITS.get((bits >> (18 - 6 * i)) as usize & 63);
            let digit = digit.filter(|_| i <= group.len());
            text.push(digit.map_or('=', |&digit| char::from(digit)));
        }
    }
    text
}

/// Asks a proxy for a connection to `target`.
pub fn tunnel(wire: &mut (impl Read + Write), target: &str, proxy: &Proxy) -> Result<(), Problem> {
    let mut head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
    head += &proxy.authorization_line();
    head += "\r\n";
    wire.write_all(head.as_bytes())?;
    let mut answer = Vec::new();
    let mut buffer = [0; 1024];
    let end = loop {
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(end) = end {
            break end + 4;
        }
        let received = wire.read(&mut buffer)?;
        if received == 0 || answer.len() > MAX_PROXY_HEAD {
            let cause = "the proxy does not answer as a proxy does";
            return Err(Problem::Passing(cause.to_owned()));
        }
        answer.extend(buffer.get(..received).unwrap_or_default());
    };
    let line = answer.split(|&byte| byte == b'\r').next();
    let line = String::from_utf8_lossy(line.unwrap_or_default()).into_owned();
    let status = line
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    match status {
        // The server speaks when it was spoken to: nothing can be there yet.
        Some(200..=299) if line.starts_with("HTTP/1.") && end == answer.len() => Ok(()),
        Some(407) => Err(Problem::Refused(WANTS_CREDENTIALS.to_owned())),
        Some(status @ 400..=499) if !matches!(status, 408 | 425 | 429) => Err(Problem::Refused(
            format!("the proxy refuses the connection to {target} ({status})"),
        )),
        Some(status) => Err(Problem::Passing(format!(
            "the proxy has no connection to {target} ({status})"
        ))),
        None => Err(Problem::Passing(
            "what answers for the proxy does not speak HTTP".to_owned(),
        )),
    }
}

/// The proxy answered 407.
pub const WANTS_CREDENTIALS: &str =
    "the proxy wants other credentials (407): put them into its URL, http://user:password@host:port";

impl Proxy {
    fn authorization_line(&self) -> String {
        self.authorization.as_ref().map_or(String::new(), |value| {
            format!("Proxy-Authorization: {value}\r\n")
        })
    }
}

/// Makes the heads of requests out of those for a server into those for a proxy.
#[derive(Debug)]
pub struct Absolute {
    /// Goes before the path.
    origin: String,
    /// Goes behind the first line.
    authorization: String,
    /// Whether what goes out next begins a request.
    at_start: bool,
}

impl Absolute {
    /// For requests to `target` (`host:port`).
    pub fn new(target: &str, proxy: &Proxy) -> Self {
        Self {
            origin: format!("http://{}", target.strip_suffix(":80").unwrap_or(target)),
            authorization: proxy.authorization_line(),
            at_start: true,
        }
    }

    /// The bytes to send instead.
    ///
    /// Requests have no body here: what follows the end of a head is the next one.
    pub fn rewrite(&mut self, output: &[u8]) -> Vec<u8> {
        let mut rewritten = Vec::with_capacity(output.len() + 256);
        let path = output.iter().position(|&byte| byte == b' ');
        let line = output.iter().position(|&byte| byte == b'\n');
        match path.zip(line).filter(|_| self.at_start) {
            Some((path, line)) => {
                let (method, rest) = output.split_at(path + 1);
                let (path, rest) = rest.split_at(line - path);
                for part in [
                    method,
                    self.origin.as_bytes(),
                    path,
                    self.authorization.as_bytes(),
                    rest,
                ] {
                    rewritten.extend_from_slice(part);
                }
            }
            None => rewritten.extend_from_slice(output),
        }
        self.at_start = output.ends_with(b"\r\n\r\n");
        rewritten
    }
}

/// An address, that of IPv6 with or without brackets.
pub fn parse_address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    bare.unwrap_or(text).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_are_parsed() {
        let proxy = |text| Proxy::parse(text).map(|it| (it.host, it.port, it.authorization));
        for (text, host, port, user) in [
            ("http://p:3128", "p", 3128, None),
            ("p:3128", "p", 3128, None),
            ("HTTP://p/", "p", 1080, None),
            ("http://[::1]:8080/x", "[::1]", 8080, None),
            (
                "http://a%20b:c%3Ad@p",
                "p",
                1080,
                Some("Basic YSBiOmM6ZA=="),
            ),
            ("a@b:c@p:1", "p", 1, Some("Basic YUBiOmM=")),
        ] {
            let expected = (host.to_owned(), port, user.map(str::to_owned));
            assert_eq!(proxy(text), Ok(expected), "{text}");
        }
        for bad in [
            "https://p",
            "socks5://p:1",
            "http://",
            ":80",
            "p:x",
            "p:99999",
            "p:",
            "a b",
        ] {
            assert!(proxy(bad).is_err(), "{bad}");
        }
        let shown = format!("{:?}", Proxy::parse("http://user:secret@p:1"));
        assert!(
            !shown.contains("secret") && !shown.contains("Basic"),
            "{shown}"
        );
    }

    #[test]
    fn exceptions_are_curls() {
        for (list, host, expected) in [
            ("", "h", false),
            ("*", "h", true),
            ("a, b ,c", "b", true),
            ("a b\tc", "c", true),
            ("example.com", "example.com", true),
            ("example.com", "www.Example.com.", true),
            ("example.com", "notexample.com", false),
            (".example.com", "example.com", true),
            (".example.com", "a.b.example.com", true),
            ("www.example.com", "example.com", false),
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.11", false),
            ("10.0.0.0/8", "10.9.8.7", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("0.0.0.0/0", "11.0.0.1", true),
            ("10.0.0.0/x", "10.0.0.0", false),
            ("::1", "[::1]", true),
            ("[::1]", "[::1]", true),
            ("fd00::/8", "[fd12::1]", true),
            ("fd00::/8", "[fe80::1]", false),
            ("1", "10.0.0.1", false),
            (".", "h", false),
        ] {
            assert_eq!(
                Exceptions::parse(list).has(host),
                expected,
                "{list:?} {host}"
            );
        }
    }

    #[test]
    fn credentials_are_encoded() {
        for (user, expected) in [
            ("Aladdin:open sesame", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),
            ("user", "Basic dXNlcjo="),
            ("a%:%4", "Basic YSU6JTQ="),
            ("%ff:", "Basic /zo="),
        ] {
            assert_eq!(basic(user), expected);
        }
    }

    #[test]
    fn heads_are_rewritten_one_by_one() {
        let mut absolute =
            Absolute::new("h:8080", &Proxy::parse("u:p@proxy").expect("it is right"));
        let mut rewrite =
            |head: &[u8]| String::from_utf8(absolute.rewrite(head)).expect("it is right");
        let line = "GET http://h:8080/a?b HTTP/1.1\r\nProxy-Authorization: Basic dTpw\r\n";
        assert_eq!(
            rewrite(b"GET /a?b HTTP/1.1\r\nHost: h:8080\r\n\r\n"),
            format!("{line}Host: h:8080\r\n\r\n")
        );
        // A long head goes out in parts.
        assert_eq!(rewrite(b"GET /a?b HTTP/1.1\r\n"), line);
        assert_eq!(rewrite(b"A: b c\r\n"), "A: b c\r\n");
        assert_eq!(rewrite(b"\r\n"), "\r\n");
    }

    fn answer_of_proxy(answer: &str) -> Result<(), &'static str> {
        struct Fake<'a>(&'a [u8], Vec<u8>);
        impl Read for Fake<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.0.read(buffer)
            }
        }
        impl Write for Fake<'_> {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.1.write(bytes)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut fake = Fake(answer.as_bytes(), Vec::new());
        let proxy = Proxy::parse("u:p@proxy").expect("it is right");
        let result = tunnel(&mut fake, "h:443", &proxy);
        let asked =
            "CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\nProxy-Authorization: Basic dTpw\r\n\r\n";
        assert_eq!(String::from_utf8(fake.1).expect("it is right"), asked);
        result.map_err(|problem| match problem {
            Problem::Refused(_) => "refused",
            Problem::Passing(_) => "passing",
            Problem::Io(_) => "io",
        })
    }

    #[test]
    fn answers_of_proxies_are_understood() {
        for (answer, expected) in [
            ("HTTP/1.1 200 OK\r\n\r\n", Ok(())),
            ("HTTP/1.0 200\r\nA: b\r\n\r\n", Ok(())),
            ("HTTP/1.1 407 Auth\r\n\r\n", Err("refused")),
            ("HTTP/1.1 403 No\r\n\r\nbody", Err("refused")),
            ("HTTP/1.1 429 Slow\r\n\r\n", Err("passing")),
            ("HTTP/1.1 502 Bad\r\n\r\n", Err("passing")),
            ("HTTP/1.1 200 OK\r\n\r\nmore", Err("passing")),
            ("SSH-2.0\r\n\r\n", Err("passing")),
            ("HTTP/1.1 200 OK\r\n", Err("passing")),
            ("", Err("passing")),
        ] {
            assert_eq!(answer_of_proxy(answer), expected, "{answer:?}");
        }
    }
}
