//! How a bundle is reached: what was typed of servers, proxies, names, certificates and patience,
//! and what the environment says of them.
//!
//! Files that are named here are read here, so that a wrong one is a usage error at once.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use super::common::Common;
use super::values::FullDownload;
use crate::connect::{Network, Resolve};
use crate::error::{Error, Result};
use crate::http::{check_url, Header, Settings};
use crate::proxy::{Exceptions, Proxies, Proxy};
use crate::remote::{Access, Location};
use crate::retry::{Limiter, Policy};
use crate::tls::{Files, Problem, Tls};

/// Where the bundle is.
pub(super) fn location(typed: &str) -> Result<Location> {
    let bundle = Location::parse(typed);
    if matches!(&bundle, Location::File(_)) && typed.contains(":/") {
        return Err(Error::Usage(format!(
            "bundle {:?}: only http:// and https:// URLs can be fetched",
            bundle.shown()
        )));
    }
    if let Location::Url(url) = &bundle {
        check_url(url)
            .map_err(|reason| Error::Usage(format!("bundle URL {}: {reason}", bundle.shown())))?;
    }
    Ok(bundle)
}

/// How to get at it.
pub(super) fn access(
    arguments: &Common,
    bundle: &Location,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Access> {
    if arguments.stall_timeout.0.is_zero() || arguments.connect_timeout.0.is_zero() {
        return Err(Error::Usage(
            "--stall-timeout and --connect-timeout: zero leaves no time for anything".to_owned(),
        ));
    }
    Ok(Access {
        http: Settings {
            connect_timeout: arguments.connect_timeout.0,
            stall_timeout: arguments.stall_timeout.0,
            headers: parse_headers(&arguments.header)?,
            network: network(arguments, bundle, variable)?,
        },
        policy: Policy {
            max_retries: arguments.http_max_retries.0,
            initial_backoff: arguments.http_retry_initial_backoff.0,
            max_backoff: arguments.http_retry_max_backoff.0,
            stall_timeout: arguments.stall_timeout.0,
            // Zero is no limit, as with curl.
            limit_rate: arguments
                .limit_rate
                .filter(|rate| rate.0 > 0)
                .map(|rate| Arc::new(Limiter::new(rate.0))),
            max_download: arguments.max_download.map(|size| size.0),
        },
        ranges: !arguments.disable_range_queries,
        full_download: matches!(arguments.full_download, FullDownload::Allow),
    })
}

fn parse_headers(headers: &[String]) -> Result<Vec<Header>> {
    let parsed = headers.iter().map(|text| {
        Header::parse(text).map_err(|reason| Error::Usage(format!("--header: {reason}")))
    });
    parsed.collect()
}

/// How servers are reached. The environment counts only for a bundle that is at a URL.
fn network(
    arguments: &Common,
    bundle: &Location,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Arc<Network>> {
    let url = match bundle {
        Location::Url(url) => url.as_str(),
        _ => "",
    };
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty() && !url.is_empty());
    let resolve = arguments.resolve.iter().map(|text| {
        Resolve::parse(text)
            .ok_or_else(|| Error::Usage(format!("--resolve {text:?} is not HOST:PORT:ADDR")))
    });
    let proxies = proxies(arguments.proxy.as_deref(), &variable)?;
    if let (None, Some(key)) = (&arguments.cert, &arguments.key) {
        let key = key.display();
        return Err(Error::Usage(format!("--key {key} needs a --cert")));
    }
    let files = Files {
        authorities: arguments.cacert.clone(),
        system: variable("SSL_CERT_FILE").map(PathBuf::from),
        certificate: arguments.cert.clone(),
        key: arguments.key.clone(),
    };
    let named = !files.authorities.is_empty() || files.certificate.is_some();
    let tls = Tls::new(files, arguments.clock());
    if named
        || url
            .get(..6)
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"))
    {
        match tls.prepare() {
            Err(Problem::File { path, reason }) => {
                return Err(Error::Usage(format!(
                    "cannot use {} for https: {reason}",
                    path.display()
                )))
            }
            Err(Problem::Unsupported(reason)) => return Err(Error::Usage(reason.to_owned())),
            // A failure of the network, once that is asked.
            Ok(()) | Err(_) => {}
        }
    }
    let resolve = resolve.collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(Network::new(resolve, proxies, tls)))
}

/// The proxies, by curl's rules: the option, else the variable of the scheme, else that for all.
/// `HTTP_PROXY` does not count, since a web server sets it to what a client sends.
fn proxies(option: Option<&str>, variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Proxies> {
    let parse = |name: &str, text: &str| {
        Proxy::parse(text).map(Some).map_err(|reason| {
            Error::Usage(format!(
                "the proxy of {name} cannot be used: {reason}\nhint: --proxy \"\" uses none"
            ))
        })
    };
    let find = |names: &[&str]| {
        for name in names {
            if let Some(value) = variable(name) {
                return parse(name, &value.to_string_lossy());
            }
        }
        Ok(None)
    };
    let (http, https) = match option {
        Some("") => (None, None),
        Some(text) => {
            let proxy = parse("--proxy", text)?;
            (proxy.clone(), proxy)
        }
        None => (
            find(&["http_proxy", "all_proxy", "ALL_PROXY"])?,
            find(&["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"])?,
        ),
    };
    let except = variable("no_proxy").or_else(|| variable("NO_PROXY"));
    Ok(Proxies {
        http,
        https,
        except: Exceptions::parse(&except.unwrap_or_default().to_string_lossy()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_follow_curls_rules() {
        let chosen = |option, environment: &[(&str, &str)]| {
            let found = proxies(option, &|name| {
                let found = environment.iter().find(|(variable, _)| *variable == name);
                found.map(|(_, value)| OsString::from(value))
            });
            let found = found.expect("they are right");
            [false, true].map(|https| found.of(https, "h").map(|proxy| proxy.host.clone()))
        };
        let both = |http: &str, https: &str| {
            [http, https].map(|host| Some(host.to_owned()).filter(|host| !host.is_empty()))
        };
        let all = [
            ("ALL_PROXY", "a"),
            ("https_proxy", "s"),
            ("HTTP_PROXY", "x"),
        ];
        assert_eq!(chosen(None, &all), both("a", "s"));
        assert_eq!(chosen(Some("o"), &all), both("o", "o"));
        assert_eq!(chosen(Some(""), &all), both("", ""));
        assert_eq!(chosen(None, &[]), both("", ""));
        let lower_first = [
            ("HTTPS_PROXY", "S"),
            ("https_proxy", "s"),
            ("http_proxy", "p"),
        ];
        assert_eq!(chosen(None, &lower_first), both("p", "s"));
        let upper = [("HTTPS_PROXY", "S"), ("all_proxy", "a"), ("ALL_PROXY", "A")];
        assert_eq!(chosen(None, &upper), both("a", "S"));
        for list in ["no_proxy", "NO_PROXY"] {
            assert_eq!(chosen(Some("o"), &[(list, "x h")]), both("", ""));
        }
        let lists = [("no_proxy", "x"), ("NO_PROXY", "h"), ("http_proxy", "p")];
        assert_eq!(chosen(None, &lists), both("p", ""));
    }
}
