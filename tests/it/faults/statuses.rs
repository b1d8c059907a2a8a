//! Statuses that pass and that last, another bundle behind the URL, redirects.

use std::sync::Arc;
use std::time::Duration;

use super::scripted::{partial, Scripted};
use super::State::{Incomplete, Untouched};
use super::{
    always, bad, check, from_middle, good, on_path, once, plain_requests, redirect, rule, status,
    status_with, Done, Try, MIDDLE, SCENE,
};
use crate::server::{Fault, Rule, Server, When};
use crate::util::number;

// A row of README.md.
#[test]
fn passing_statuses_are_tried_again() {
    for code in [408, 425, 429, 500, 502, 503, 504] {
        check([
            good(format!("{code} once"), once(status(code))).retried(),
            bad(
                format!("{code} from the start"),
                3,
                Untouched,
                always(status(code)),
            )
            .gave_up(0)
            .fetched(0..=0)
            .says(code.to_string()),
            bad(
                format!("{code} from the middle on"),
                3,
                Incomplete,
                from_middle(status(code)),
            )
            .gave_up(MIDDLE)
            .says(format!(
                " bytes {}..{} ",
                SCENE.run(1).start,
                SCENE.run(1).end
            )),
        ]);
    }
    let rules = [
        rule(When::Every(10), status(502)),
        rule(When::Every(15), status_with(503, "Retry-After", "0")),
        rule(When::Every(4), status(429)),
        rule(When::Always, Fault::NarrowRange(10_000)),
    ];
    let row = good("a bad day", rules).requests(30..=60).retries(8..=25);
    row.check();
}

// A row of README.md.
#[test]
fn lasting_statuses_end_the_run() {
    for code in [400, 401, 403, 404, 405, 410, 416, 418, 501, 505] {
        check([
            bad(
                format!("{code} at the start"),
                4,
                Untouched,
                always(status(code)),
            )
            .requests(1..=1)
            .fetched(0..=0)
            .says(code.to_string()),
            bad(
                format!("{code} in the middle"),
                4,
                Incomplete,
                once(status(code)),
            )
            .requests(MIDDLE + 1..=MIDDLE + 1)
            .says(code.to_string()),
        ]);
    }
}

// A row of README.md.
#[test]
fn retry_after_is_kept() {
    let second = Duration::from_secs(1);
    for (code, value, least, most) in [
        (503, "1", second, 10 * second),
        (429, "0", Duration::ZERO, second),
        // A date, or nonsense: as if it were not there.
        (503, "Fri, 31 Dec 2099 23:59:59 GMT", Duration::ZERO, second),
        (503, "-5", Duration::ZERO, second),
        (503, "99999999999999999999999", Duration::ZERO, second),
    ] {
        let name = format!("Retry-After: {value}");
        let fault = status_with(code, "Retry-After", value);
        let (server, _) = good(name, once(fault)).retried().check();
        let requests = server.requests();
        let waited = requests[MIDDLE + 1].at - requests[MIDDLE].at;
        assert!(waited >= least && waited < most, "{value}: {waited:?}");
    }
    let fault = status_with(404, "Retry-After", "60");
    let (_, done) = bad("404", 4, Untouched, always(fault))
        .requests(1..=1)
        .check();
    assert!(done.outcome.elapsed < 10 * second);
}

// A row of README.md.
#[test]
fn a_changed_bundle_is_noticed() {
    let changed = "bundle changed on the server";
    check([
        bad("ETag", 4, Incomplete, from_middle(Fault::ChangedEtag))
            .requests(MIDDLE + 1..=MIDDLE + 1)
            .says(changed)
            .says("ETag"),
        bad("larger", 4, Incomplete, from_middle(Fault::ChangedSize(1)))
            .requests(MIDDLE + 1..=MIDDLE + 1)
            .says(changed)
            .says("size"),
        bad(
            "smaller",
            4,
            Incomplete,
            from_middle(Fault::ChangedSize(-1)),
        )
        .requests(MIDDLE + 1..=MIDDLE + 1)
        .says(changed),
        good("no validators", always(Fault::NoValidators)),
        bad("no validators, other size", 4, Incomplete, {
            let size = rule(When::After(MIDDLE), Fault::ChangedSize(9));
            [rule(When::Always, Fault::NoValidators), size]
        })
        .requests(MIDDLE + 1..=MIDDLE + 1)
        .says(changed),
    ]);
}

/// The file is replaced while it is being read, by one of the same size.
// A row of README.md.
#[test]
fn a_replaced_bundle_is_noticed() {
    let server = Arc::new(Server::start([("/b", SCENE.bundle())]));
    let other = SCENE.bundle().iter().map(|byte| !byte).collect::<Vec<u8>>();
    let weak = Arc::downgrade(&server);
    // The request that does it still sees the old file.
    let replace = move |request: &crate::server::Request| {
        if let (1, Some(server)) = (request.number, weak.upgrade()) {
            server.set_file("/b", other.clone());
        }
        false
    };
    server.fault(When::matching(replace), Fault::IgnoreRange);
    let done = Done::of(Try::new(&server.url("/b")));
    let row = bad("replaced", 4, Incomplete, []).requests(3..=3);
    row.says("bundle changed on the server")
        .compare(&server, &done);
}

// A row of README.md.
#[test]
fn last_modified_counts_where_there_is_no_etag() {
    let serve = |changing: bool| {
        Scripted::start(move |number, range| {
            let date = if changing && number >= MIDDLE { 10 } else { 9 };
            let date = format!("Last-Modified: Thu, {date} Jul 2026 10:00:00 GMT\r\n");
            partial(SCENE.bundle(), range, &date)
        })
    };
    let same = serve(false);
    Done::of(Try::new(&same.url())).outcome.expect_exit(0);
    let changing = serve(true);
    let done = Done::of(Try::new(&changing.url()));
    done.outcome
        .expect_exit(4)
        .expect_stderr("bundle changed on the server: Last-Modified");
    assert_eq!(done.state, Some(Incomplete));
    assert_eq!(number(&done.report, "/http/requests"), MIDDLE as u64 + 1);
}

fn redirecting(rules: impl IntoIterator<Item = Rule>) -> Server {
    let file = || SCENE.bundle();
    let server = Server::start([("/b", file()), ("/d/real", file()), ("/d/b", file())]);
    rules.into_iter().for_each(|rule| server.on(rule));
    server
}

// A row of README.md.
#[test]
fn redirects_are_followed_and_remembered() {
    for code in [301, 302, 303, 307, 308] {
        let to = Fault::Redirect("/d/real".to_owned(), code);
        let row = good(format!("{code}"), []).more(1);
        let (server, _) = row.check_on(redirecting([on_path("/b", to)]));
        let first = server.requests().iter().filter(|r| r.path == "/b").count();
        assert_eq!(first, 1, "{code}: the place is remembered");
    }
    let chain = [
        on_path("/b", redirect("d/b")),
        on_path("/d/b", redirect("real?key=secret")),
    ];
    let (server, done) = good("relative", []).more(2).check_on(redirecting(chain));
    assert_eq!(server.requests()[3].query.as_deref(), Some("key=secret"));
    done.outcome.expect_not_in_output("secret");
}

#[test]
fn redirects_to_another_server_are_followed() {
    let mirror = Server::start([("/m", SCENE.bundle())]);
    let server = Server::start([("/b", SCENE.bundle())]);
    server.fault(When::Always, redirect(&mirror.url("/m")));
    let done = Done::of(Try::new(&server.url("/b")).args(["--workers", "4"]));
    done.outcome.expect_exit(0);
    assert_eq!(
        (server.requests().len(), mirror.requests().len()),
        (1, plain_requests())
    );
    // A mirror without ranges (a load balancer in front of plain servers).
    mirror.fault(When::Always, Fault::IgnoreRange);
    server.reset_log();
    mirror.reset_log();
    let done = Done::of(Try::new(&server.url("/b")));
    done.outcome.expect_exit(0);
    assert_eq!(done.fetched(), SCENE.size());
    assert_eq!(mirror.requests().len(), 2);
}

// A row of README.md.
#[test]
fn redirects_have_an_end() {
    let chain = |length: usize| {
        let server = redirecting([]);
        for n in 0..length {
            let to = if n + 1 == length {
                "/d/real".to_owned()
            } else {
                format!("/{}", n + 1)
            };
            let from = if n == 0 {
                "/b".to_owned()
            } else {
                format!("/{n}")
            };
            server.fault(When::matching(move |r| r.path == from), redirect(&to));
        }
        server
    };
    good("ten", []).more(10).check_on(chain(10));
    let eleven = bad("eleven", 4, Untouched, [])
        .requests(11..=11)
        .fetched(0..=0);
    eleven.says("redirects").check_on(chain(11));
    check([
        bad("a loop", 4, Untouched, always(redirect("/b")))
            .requests(11..=11)
            .says("redirects"),
        bad("to nowhere", 4, Untouched, always(status(302))).requests(1..=1),
        bad(
            "to a file",
            4,
            Untouched,
            always(redirect("file:///etc/passwd")),
        )
        .requests(1..=1),
        bad(
            "to ftp",
            4,
            Untouched,
            always(redirect("ftp://127.0.0.1/b")),
        )
        .requests(1..=1),
    ]);
}

/// A redirect may lead to a signed URL that expires.
// A row of README.md.
#[test]
fn a_refusing_place_leads_to_one_fresh_trip() {
    for code in [401, 403, 404, 410] {
        let to = || on_path("/b", redirect("/d/real"));
        let expired = rule(When::Nth(3), status(code));
        let row = good(format!("{code} once"), []).more(3);
        let (server, _) = row.check_on(redirecting([to(), expired]));
        let first = server.requests().iter().filter(|r| r.path == "/b").count();
        assert_eq!(first, 2);
        let gone = rule(
            When::matching(|r| r.number >= 3 && r.path != "/b"),
            status(code),
        );
        bad(format!("{code} for ever"), 4, Incomplete, [])
            .requests(6..=6)
            .says(code.to_string())
            .check_on(redirecting([to(), gone]));
    }
}
