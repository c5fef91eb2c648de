//! The page of the admin address: whole, without anything from elsewhere, and shown by a browser.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::support::{Server, command, http, serve, serve_dir, until};

/// What the page must show.
const PANELS: [&str; 13] = [
    "now",
    "throughput",
    "latency",
    "aborts",
    "memory",
    "nodes",
    "lag",
    "log",
    "links",
    "stages",
    "families",
    "scripts",
    "slow",
];

fn json(server: &Server, path: &str) -> Value {
    let (code, _, body) = server.http(path);
    assert_eq!(code, 200, "{path}");
    serde_json::from_str(&body).unwrap()
}

/// A node with something to show, of which a point has been taken.
fn busy() -> Server {
    let server = Server::start(serve(["--ephemeral", "--threads", "2"]));
    let mut client = server.client();
    client.run("CONFIG SET slowlog-log-slower-than 0");
    for i in 0..200 {
        client.run(&format!("SET key:{i} value"));
        client.run(&format!("GET key:{i}"));
    }
    client.send(&command(&["EVAL", "return redis.call('INCR', KEYS[1])", "1", "counter"])).unwrap();
    client.receive().unwrap();
    until("there is a point", || {
        !json(&server, "/series")["points"]["t"].as_array().is_none_or(Vec::is_empty)
    });
    server
}

#[test]
fn the_page_is_whole_and_needs_nothing_from_elsewhere() {
    let server = Server::start(serve(["--ephemeral"]));
    let (code, head, page) = server.http("/");
    assert!(code == 200 && head.contains("content-type: text/html"), "{head}");
    for panel in PANELS {
        assert!(page.contains(&format!("data-panel=\"{panel}\"")), "{panel}");
    }
    for foreign in ["http://", "https://", "src=", "@import", "url(", "<link", "<iframe"] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    // Every element that is opened is closed, in the right order.
    let body = &page[page.find("<body>").unwrap()..page.find("<script>").unwrap()];
    let mut open: Vec<&str> = Vec::new();
    for tag in body.split('<').skip(1).filter_map(|rest| rest.split('>').next()) {
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None => open.push(tag.split(' ').next().unwrap()),
        }
    }
    assert_eq!(open, ["body"]);
    server.stop();
}

#[test]
fn the_series_hold_what_the_page_shows() {
    let server = busy();
    let series = json(&server, "/series");
    let points = &series["points"];
    for column in ["t", "committed", "requests", "p50", "p99", "p999", "lag", "resident", "abort_conflict"] {
        assert!(points[column].as_array().is_some_and(|values| !values.is_empty()), "{column}: {points}");
    }
    let names = |list: &str| -> Vec<String> {
        let all = series[list].as_array().unwrap().iter();
        all.map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("stages"), ["execution", "log", "reply", "sequencing"]);
    let families = names("families");
    assert!(
        ["read", "write", "script"].iter().all(|name| families.iter().any(|n| n == name)),
        "{families:?}"
    );
    assert!(series["scripts"][0]["count"].as_u64() >= Some(1), "{series}");
    let slow = series["slow"].as_array().unwrap();
    assert!(slow.iter().any(|entry| entry["words"][0] == "EVAL"), "{slow:?}");

    // The same numbers as histograms for Prometheus, and a meaning for each.
    let metrics = server.http("/metrics").2;
    for line in [
        "# TYPE ordain_command_seconds histogram",
        "# TYPE ordain_stage_seconds histogram",
        "# TYPE ordain_batch_transactions histogram",
        "# TYPE ordain_loop_turn_seconds histogram",
        "# TYPE ordain_role_event_seconds histogram",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}");
    }
    let bucket =
        |line: &&str| line.starts_with("ordain_command_seconds_bucket{") && line.contains("family=\"write\"");
    let counts: Vec<f64> = metrics
        .lines()
        .filter(bucket)
        .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
        .collect();
    assert!(counts.len() == 22 && counts.is_sorted() && counts[21] >= 200.0, "{counts:?}");
    assert!(!metrics.contains("No description."), "a metric is missing in admin/catalogue.rs");
    server.stop();
}

#[test]
fn looking_at_a_node_runs_no_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(serve_dir(dir.path(), ["--threads", "2"]));
    server.client().run("SET k v");
    let counts = || -> Vec<String> {
        let metrics = server.http("/metrics").2;
        let counted = |line: &&str| {
            ["ordain_sequencer_transactions_total{", "ordain_shard_committed_total{"]
                .iter()
                .any(|name| line.starts_with(name))
        };
        metrics.lines().filter(counted).map(str::to_owned).collect()
    };
    let mut before = Vec::new();
    until("the write is counted", || {
        before = counts();
        let has_counted = |role: &str| {
            before.iter().any(|line| line.starts_with(&format!("ordain_{role}")) && line.ends_with(" 1.0"))
        };
        // Each role's are as of a moment of its own.
        has_counted("sequencer") && has_counted("shard")
    });
    for _ in 0..20 {
        for path in ["/readyz", "/status", "/series", "/metrics", "/healthz", "/"] {
            assert_eq!(server.http(path).0, 200, "{path}");
        }
    }
    // Longer than numbers are old.
    let points = || json(&server, "/series")["points"]["t"].as_array().map_or(0, Vec::len);
    let seen = points();
    until("another point is taken", || points() > seen);
    assert_eq!(counts(), before);
    server.stop();
}

fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut all =
        std::env::split_paths(&path).flat_map(|dir| ["chromium", "google-chrome"].map(|name| dir.join(name)));
    all.find(|program| program.is_file())
}

/// The page as a browser shows it, as text.
fn shown_by(browser: &Path, admin: SocketAddr) -> String {
    let profile = tempfile::tempdir().unwrap();
    let shown = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"])
        .args(["--virtual-time-budget=6000", "--window-size=400,2000"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("http://{admin}/"))
        .output()
        .unwrap();
    let page = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(page.contains("data-shown=\"yes\""), "{page}\n{}", String::from_utf8_lossy(&shown.stderr));
    page
}

/// The row of a node in the page's table of nodes.
fn row(page: &str, node: usize) -> &str {
    let table = page.split("<table id=\"nodes\"").nth(1).unwrap().split("</table>").next().unwrap();
    let rows = table.split("<tbody>").nth(1).unwrap();
    rows.split("<tr>").nth(1 + node).unwrap()
}

/// The page has its own two sources of what nodes are like: what each says, and the links to them.
#[test]
fn a_node_that_was_killed_is_shown_as_one_that_is_not_reached() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(
        &dir.path().join("data"),
        &["--partitions", "1", "--replicas", "3", "--threads", "1", "--durability", "os"],
    );
    let admin = cluster.address(0, "admin");
    let read = |path: &str| -> Value { serde_json::from_str(&http(admin, path).2).unwrap() };
    let of = |node: u64| {
        let nodes = read("/series")["nodes"].as_array().cloned().unwrap_or_default();
        nodes.into_iter().find(|other| other["node"] == node).unwrap_or_default()
    };
    let is_well =
        |node: &Value| node["epoch"].is_u64() && node["unreachable"].is_null() && node["not_ready"].is_null();
    // Before all have met once, no two of them can go on alone.
    until("the others are well", || [1, 2].iter().all(|node| is_well(&of(*node))));
    cluster.kill(2);
    until("the one that was killed says nothing, and the other is well", || {
        of(2)["unreachable"].as_str().is_some_and(|reason| !reason.is_empty()) && is_well(&of(1))
    });
    until("the link to it is down", || {
        let status = read("/status");
        let state = |node: u64| {
            let peers = status["peers"].as_array().unwrap();
            peers.iter().find(|peer| peer["node"] == node).unwrap()["state"].clone()
        };
        state(1) == "connected" && state(2) != "connected"
    });
    if let Some(browser) = browser() {
        until("a browser shows the one as not reached and the others as ready", || {
            let page = shown_by(&browser, admin);
            let is_ready = |node: usize| row(&page, node).contains(">ready<");
            is_ready(0) && is_ready(1) && !is_ready(2) && row(&page, 2).contains("unreachable: ")
        });
    } else {
        eprintln!("there is no chromium here: only what the page is made from was looked at");
    }
    cluster.stop();
}

#[test]
fn a_browser_shows_the_page() {
    let Some(browser) = browser() else {
        eprintln!("skipped: there is no chromium here to show the page with");
        return;
    };
    let server = busy();
    let page = shown_by(&browser, server.admin);
    for words in [
        ">ready</p>",
        "aria-label=\"transactions committed, requests\"",
        "99.9th percentile",
        ">per second</text>",
        ">time</text>",
        ">bytes</text>",
        ">epochs</text>",
        "turn of an event loop",
        "limit (maxmemory) <b>none</b>",
        "data-label=\"digest at epoch\"",
        ">scripts and functions</td>",
        ">sequencing</td>",
        "EVAL return redis.call",
    ] {
        assert!(page.contains(words), "'{words}' is not in:\n{page}");
    }
    server.stop();
}
