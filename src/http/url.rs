//! URLs as text: what is in them, what of them may be shown, where a redirect leads.
//!
//! User info, query and fragment may hold secrets: messages have what [`shown`] leaves.

use ureq::http::Uri;

/// True for URLs that can be fetched.
pub fn is_http_url(text: &str) -> bool {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|s| s.eq_ignore_ascii_case("http") || s.eq_ignore_ascii_case("https"))
}

/// Why a URL cannot be fetched, as far as that can be seen from it.
pub fn check_url(url: &str) -> Result<(), &'static str> {
    let uri: Uri = url.parse().map_err(|_| "it is malformed")?;
    let authority = uri.authority().ok_or("it names no host")?;
    if authority.host().is_empty() {
        return Err("it names no host");
    }
    // What stands behind the host, which `authority.port` gives only if it is one.
    let host_on = authority.as_str().rsplit('@').next().unwrap_or_default();
    match host_on
        .strip_prefix(authority.host())
        .map(|port| port.strip_prefix(':'))
    {
        Some(Some(port)) if port.parse::<u16>().is_err() => Err("its port is no port"),
        _ => Ok(()),
    }
}

/// A URL without user info, query and fragment.
pub fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (host, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

/// A URL without its user info, and that.
pub(super) fn split_user_info(url: &str) -> (String, Option<&str>) {
    let whole = || (url.to_owned(), None);
    let Some((scheme, rest)) = url.split_once("://") else {
        return whole();
    };
    let (authority, path) = rest
        .find(['/', '?', '#'])
        .map_or((rest, ""), |at| rest.split_at(at));
    let Some((user_info, host)) = authority.rsplit_once('@') else {
        return whole();
    };
    (format!("{scheme}://{host}{path}"), Some(user_info))
}

/// Whether two URLs have scheme, host and port in common.
pub(super) fn same_origin(a: &str, b: &str) -> bool {
    let origin = |url: &str| {
        let uri: Uri = url.parse().ok()?;
        let (scheme, host) = (
            uri.scheme_str()?.to_owned(),
            uri.host()?.to_ascii_lowercase(),
        );
        let default = if scheme == "https" { 443 } else { 80 };
        Some((scheme, host, uri.port_u16().unwrap_or(default)))
    };
    let a = origin(a);
    a.is_some() && a == origin(b)
}

/// Resolves the target of a redirect against the URL that gave it (RFC 3986, 5.2).
pub(super) fn join(base: &str, to: &str) -> Option<String> {
    let to = to.split('#').next().filter(|to| !to.is_empty())?;
    if has_scheme(to) {
        return Some(to.to_owned());
    }
    let (scheme, rest) = base.split_once("://")?;
    if let Some(host_on) = to.strip_prefix("//") {
        return Some(format!("{scheme}://{host_on}"));
    }
    let rest = rest.split(['?', '#']).next()?;
    let (host, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
    let path = match (to.as_bytes().first()?, path.rfind('/')) {
        (b'/', _) => to.to_owned(),
        (b'?', _) => format!("{path}{to}"),
        (_, Some(at)) => format!("{}/{to}", path.get(..at)?),
        (_, None) => format!("/{to}"),
    };
    Some(format!("{scheme}://{host}{}", without_dots(&path)))
}

/// Whether a reference begins with a scheme. What looks like one may as well stand in its query.
fn has_scheme(to: &str) -> bool {
    let scheme = to.split(['/', '?']).next().unwrap_or_default();
    let is_of_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    scheme.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(is_of_scheme)
    })
}

/// A path with its `.` and `..` carried out; many an object store would look for just these names.
fn without_dots(path: &str) -> String {
    let (path, query) = path.find('?').map_or((path, ""), |at| path.split_at(at));
    let mut parts = Vec::new();
    for part in path.split('/').skip(1) {
        // What follows a last one is a folder.
        if matches!(parts.last(), Some(&("." | ".."))) {
            leave(&mut parts);
        }
        parts.push(part);
    }
    if matches!(parts.last(), Some(&("." | ".."))) {
        leave(&mut parts);
        parts.push("");
    }
    format!("/{}{query}", parts.join("/"))
}

/// Carries out the last part of a path, a `.` or `..`.
fn leave(parts: &mut Vec<&str>) {
    if parts.pop() == Some("..") {
        parts.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_urls_are_noticed() {
        for good in [
            "http://h/b",
            "http://u:p@h:80/b?c",
            "http://[::1]:8080/b",
            "https://h",
        ] {
            assert_eq!(check_url(good), Ok(()), "{good}");
        }
        for bad in [
            "http://",
            "http://h:99999/b",
            "http://h:x/b",
            "http://h:/b",
            "http://h/ b",
        ] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn redirects_are_resolved() {
        for (to, expected) in [
            ("https://b/c", "https://b/c"),
            ("//b/c", "http://b/c"),
            ("/c", "http://a:1/c"),
            ("c", "http://a:1/x/c"),
            ("?c", "http://a:1/x/y?c"),
            ("/c?d=http://e/f", "http://a:1/c?d=http://e/f"),
            ("c?d=e:f", "http://a:1/x/c?d=e:f"),
            ("c#d://e", "http://a:1/x/c"),
            ("../c", "http://a:1/c"),
            ("./c/./d/../e", "http://a:1/x/c/e"),
            ("../../../c/..?../d", "http://a:1/?../d"),
            ("/c/.", "http://a:1/c/"),
            ("ftp:c", "ftp:c"),
            ("HTTPS://b/c", "HTTPS://b/c"),
        ] {
            assert_eq!(join("http://a:1/x/y?z", to).as_deref(), Some(expected));
        }
        assert_eq!(join("http://a", "c").as_deref(), Some("http://a/c"));
        for nowhere in ["", "#c"] {
            assert_eq!(join("http://a", nowhere), None);
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        for (url, expected) in [
            ("http://h/p", "http://h/p"),
            ("http://user:pass@h:80/p?sig=1#x", "http://h:80/p"),
            ("https://h?token=1", "https://h"),
            ("http://u@h/p@q", "http://h/p@q"),
        ] {
            assert_eq!(shown(url), expected);
        }
    }

    #[test]
    fn credentials_stay_at_home() {
        for (url, plain, user_info) in [
            ("http://h/a@b", "http://h/a@b", None),
            ("http://u:p@h:1/a", "http://h:1/a", Some("u:p")),
            ("http://u@v:p@h?a@b", "http://h?a@b", Some("u@v:p")),
        ] {
            assert_eq!(split_user_info(url), (plain.to_owned(), user_info));
        }
        for (other, expected) in [
            ("http://H:80/x", true),
            ("HTTP://h", true),
            ("https://h/", false),
            ("http://h:81/", false),
            ("http://h.evil/", false),
            ("nonsense", false),
        ] {
            assert_eq!(same_origin("http://h/a", other), expected, "{other}");
        }
    }
}
