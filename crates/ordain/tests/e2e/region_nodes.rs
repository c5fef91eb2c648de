//! Regions as processes: database servers, standbys and storage nodes, what each of them does for clients, and what is kept while they
//! are killed, frozen and emptied (regions.md, sections 2, 4.2, 4.3 and 4.10).

use std::fs;
use std::path::Path;
use std::time::Duration;

use ordain_checker::Level;
use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::status;
use crate::faults::grid::Grid;
use crate::faults::load::{Promise, promised_under_load};
use crate::support::{Client, DEADLINE, Expect, Reply, Server, command, http, ordain, run, serve_dir, until};

/// A time in which a server would answer if it answered at all.
const SOON: Duration = Duration::from_millis(300);

/// The file of regions with so many servers and storage nodes each; the number of replicas beside it.
fn settings(engine: &str, (servers, storage): (usize, usize), more: &str) -> (usize, String) {
    (servers + storage, format!("engine = \"{engine}\"\nservers = {servers}\n{more}\n"))
}

/// Two regions whose server has one storage node.
fn two_regions(engine: &str, more: &str) -> Grid {
    let (replicas, settings) = settings(engine, (1, 1), &format!("storage = \"quorum\"\n{more}"));
    Grid::start(2, replicas, &settings)
}

/// The line of a cluster's file by which regions show each other the past.
const STALE: &str = "[option]\nro-mode = \"stale\"";

/// Sends commands, words between spaces, and reads their replies.
fn all(client: &mut Client, lines: &[String]) -> Vec<Reply> {
    let bytes: Vec<u8> =
        lines.iter().flat_map(|line| command(&line.split_whitespace().collect::<Vec<_>>())).collect();
    client.send(&bytes).unwrap();
    lines.iter().map(|_| client.receive().unwrap()).collect()
}

/// Holds a reply to a refusal of what concerns another region.
#[track_caller]
fn refused(reply: &Reply, word: &str) {
    let error = reply.error();
    assert!(error.starts_with("ERR transaction aborted: ") && error.contains(word), "{error}");
}

const ALL: &str = "it concerns the keys of all regions";

/// Transactions of one region and of both run at either server, in every form, and each sees at once what all before it have done.
fn runs_in_regions_and_between_them(engine: &str) {
    let grid = two_regions(engine, "");
    let key = |region: usize, name: &str| grid.key_in(region, name);
    let (own, more) = (key(0, "own"), key(0, "more"));
    let (far, farther) = (key(1, "far"), key(1, "farther"));
    let (mut here, mut there) = (grid.client(0), grid.client(1));
    let both = |client: &mut Client| client.run(&format!("MGET {own} {far}"));
    let are = |one: u32, other: u32| [one, other].map(|n| Reply::Bulk(n.to_string().into()));

    assert_eq!(here.run(&format!("MSET {own} 1 {more} 1")), Reply::ok());
    assert_eq!(there.run(&format!("MSET {far} 1 {farther} 1")), Reply::ok());
    assert_eq!(both(&mut here).items(), are(1, 1));
    assert_eq!(both(&mut there).items(), are(1, 1));
    // Writes elsewhere, blind or of what was read, and of both regions.
    assert_eq!(here.run(&format!("SET {far} 2")), Reply::ok());
    assert_eq!(there.run(&format!("INCR {far}")), Reply::Int(3));
    assert_eq!(here.run(&format!("INCR {far}")), Reply::Int(4));
    assert_eq!(there.run(&format!("MSET {own} 5 {far} 5")), Reply::ok());
    assert_eq!(both(&mut here).items(), are(5, 5));
    let multi = ["MULTI".into(), format!("INCR {own}"), format!("DECR {far}"), "EXEC".into()];
    assert_eq!(all(&mut here, &multi)[3].items(), [Reply::Int(6), Reply::Int(4)]);
    assert_eq!(both(&mut there).items(), are(6, 4));
    let script = "redis.call('INCRBY', KEYS[1], -1) return redis.call('INCRBY', KEYS[2], 1)";
    assert_eq!(here.call(&["EVAL", script, "2", &own, &far]), Reply::Int(5));
    assert_eq!(there.call(&["EVAL", script, "2", &own, &far]), Reply::Int(6));
    let txn = ["TXN.BEGIN".into(), format!("GET {far}"), format!("SET {own} 9"), "TXN.COMMIT".into()];
    // A step is shown the view, which may not have what was written a moment ago: then the commit is refused.
    until("an open transaction reads the newest", || {
        let replies = all(&mut here, &txn);
        if replies[3] != Reply::ok() {
            // Or the one before it holds its locks yet.
            let error = replies[3].error();
            assert!(error.starts_with("TXNABORT ") && error.ends_with(": retry"), "{error}");
            return false;
        }
        replies[1].text() == "6"
    });
    assert_eq!(both(&mut there).items(), are(9, 6));
    let txn = ["TXN.BEGIN".into(), format!("SET {far} 8"), format!("GET {own}"), "TXN.ABORT".into()];
    all(&mut here, &txn);
    assert_eq!(both(&mut here).items(), are(9, 6), "nothing is left of what was given up");
    let watched = |client: &mut Client, key: &str| {
        assert_eq!(client.run(&format!("WATCH {key}")), Reply::ok());
        assert_eq!(client.run("MULTI"), Reply::ok());
        client.run(&format!("INCR {key}"));
        client.run("EXEC")
    };
    assert_eq!(watched(&mut here, &far).items(), [Reply::Int(7)]);
    assert_eq!(here.run(&format!("WATCH {far}")), Reply::ok());
    assert_eq!(there.run(&format!("INCR {far}")), Reply::Int(8));
    assert_eq!(all(&mut here, &["MULTI".into(), format!("INCR {own}"), "EXEC".into()])[2], Reply::Nil);
    for whole in ["DBSIZE", "FLUSHALL", "KEYS *"] {
        refused(&here.run(whole), ALL);
    }
    // Sums over both regions do not change, whoever moves something to where.
    assert_eq!(here.run(&format!("MSET {own} 100 {far} 100")), Reply::ok());
    let moves = |client: &mut Client, (from, to): (&str, &str)| {
        let multi = ["MULTI".into(), format!("DECR {from}"), format!("INCR {to}"), "EXEC".into()];
        (0..25).for_each(|_| _ = all(client, &multi));
    };
    // Who only reads may be turned away while others write all the time.
    let sum = |client: &mut Client| {
        let mut sum = 0;
        until("what reads both regions is answered", || {
            let reply = both(client);
            if matches!(reply, Reply::Error(_)) {
                assert!(reply.error().starts_with("BUSY "), "{reply:?}");
                return false;
            }
            sum = reply.items().iter().map(|n| n.text().parse::<i64>().unwrap()).sum();
            true
        });
        sum
    };
    let [mut one, mut other] = [grid.client(0), grid.client(1)];
    std::thread::scope(|scope| {
        let (one, other) = (&mut one, &mut other);
        scope.spawn(|| moves(one, (&own, &far)));
        scope.spawn(|| moves(other, (&far, &own)));
        for _ in 0..20 {
            assert_eq!((sum(&mut here), sum(&mut there)), (200_i64, 200_i64));
        }
    });
    grid.stop();
}

/// The writes of which a view is seen to take one after the other.
const WRITES: u64 = 40;

/// With `ro-mode=stale` what only reads is shown what the other region has made durable, whole transactions of it.
fn shows_the_past(engine: &str) {
    let grid = two_regions(engine, STALE);
    let key = |region: usize, name: &str| grid.key_in(region, name);
    let (own, more) = (key(0, "own"), key(0, "more"));
    let (far, farther) = (key(1, "far"), key(1, "farther"));
    let (mut here, mut there) = (grid.client(0), grid.client(1));
    assert_eq!(here.run(&format!("MSET {own} 5 {more} 5")), Reply::ok());
    assert_eq!(there.run(&format!("MSET {far} 1 {farther} 1")), Reply::ok());

    until("a view has what was written", || here.run(&format!("GET {far}")).bytes() == b"1");
    let mut seen = 1;
    for n in 2..=WRITES {
        assert_eq!(there.run(&format!("MSET {far} {n} {farther} {n}")), Reply::ok());
        let both = here.run(&format!("MGET {far} {farther} {own}"));
        let [one, other, own] = both.items() else { panic!("{both:?}") };
        assert_eq!((one, own.text()), (other, "5"), "a half of a transaction");
        let number = one.text().parse::<u64>().unwrap();
        assert!((seen..=n).contains(&number), "{seen} was shown, and {number} after it");
        seen = number;
    }
    until("a view has all", || here.run(&format!("GET {farther}")).text() == WRITES.to_string());
    assert_eq!(here.run("TXN.BEGIN READONLY"), Reply::ok());
    assert_eq!(here.run(&format!("GET {far}")).text(), WRITES.to_string());
    assert_eq!(here.run(&format!("GET {own}")).text(), "5");
    assert_eq!(here.run("TXN.COMMIT"), Reply::ok());

    says_how_far_views_are(&grid, &mut here);
    grid.stop();
}

/// INFO, `/status` and `/metrics` of a server tell of its own region and of what it shows of the other; the view is nothing of its own.
fn says_how_far_views_are(grid: &Grid, here: &mut Client) {
    // A node says from time to time how far it is, and a view may be ahead of what its region was last seen to say.
    let mut place = 0;
    until("all doors tell of the last write", || {
        let region = grid.status(1);
        place = region["applied_epoch"].as_u64().unwrap();
        let line = format!("ordain_proxy_applied{{role=\"proxy\",loop=\"ordain-0\",region=\"1\"}} {place}.0");
        region["committed"].as_u64().unwrap() >= WRITES
            && here.run("INFO regions").text().contains(&format!("applied={place},"))
            && grid.status(0)["regions"]["views"][0]["applied"].as_u64() == Some(place)
            && http(found_admin(grid, 0), "/metrics").2.lines().any(|found| found == line)
    });
    let info = here.run("INFO").text().to_owned();
    for words in [
        "# Server\r\n",
        "\r\n# Regions\r\nregion:0\r\n",
        "region_role:leader\r\n",
        "\r\nview1:name=1,applied=",
    ] {
        assert!(info.contains(words), "'{words}' is not in:\n{info}");
    }
    let found = grid.status(0);
    let view = &found["regions"]["views"][0];
    assert_eq!((&found["regions"]["region"], &view["region"]), (&0.into(), &1.into()));
    assert!(view["age_ms"].as_u64().unwrap() < DEADLINE.as_millis() as u64, "{view}");
    assert_eq!(
        (&found["records"], &view["behind"]),
        (&2.into(), &false.into()),
        "two keys: a view holds nothing of the node's own"
    );
    assert_eq!(grid.status(2)["regions"]["views"], Value::Array(Vec::new()), "a storage node has no view");
    let metrics = http(found_admin(grid, 0), "/metrics").2;
    let mut series: Vec<&str> = metrics.lines().filter_map(|line| Some(line.rsplit_once(' ')?.0)).collect();
    series.retain(|line| !line.starts_with('#'));
    let count = series.len();
    series.sort_unstable();
    series.dedup();
    assert_eq!(series.len(), count, "a series stands there twice");
    assert!(!metrics.contains("No description."), "{metrics}");
}

/// The admin server of a node.
fn found_admin(grid: &Grid, node: usize) -> std::net::SocketAddr {
    let status = grid.status(0);
    status["members"][node]["admin"].as_str().unwrap().parse().unwrap()
}

#[test]
fn silo_runs_in_regions_and_between_them() {
    runs_in_regions_and_between_them("regions-silo");
}

#[test]
fn locks_run_in_regions_and_between_them() {
    runs_in_regions_and_between_them("regions-2pl");
}

#[test]
fn silo_shows_the_past() {
    shows_the_past("regions-silo");
}

#[test]
fn locks_show_the_past() {
    shows_the_past("regions-2pl");
}

/// Servers and storage nodes of one region are killed, frozen and emptied under load; what clients saw is strictly serializable.
fn keeps_its_promise(engine: &str, storage: &str) {
    let more = format!("storage = \"{storage}\"\ncheckpoint-log-bytes = 20000");
    let (replicas, settings) = settings(engine, (2, 3), &more);
    let mut grid = Grid::start(1, replicas, &settings);
    let promise = Promise { level: Level::StrictSerializable, cascades: false, loses: false };
    let doors = grid.doors()[..2].to_vec();
    promised_under_load(promise, &doors, 61, |load| {
        // The server that executes, with its directory and without.
        for is_emptied in [false, true] {
            load.trouble(&mut grid, 30, |grid, load| {
                let leader = grid.leader(0);
                grid.kill(leader);
                if is_emptied {
                    fs::remove_dir_all(grid.directory(leader)).unwrap();
                }
                load.advance(30);
                grid.restart(leader);
            });
        }
        // The one that stands still comes back when another leads.
        load.trouble(&mut grid, 30, |grid, load| {
            let frozen = grid.leader(0);
            grid.signal(frozen, Signal::STOP);
            load.advance(30);
            grid.signal(frozen, Signal::CONT);
            load.advance(30);
        });
        // Storage nodes: with their directories, and one after the other without.
        load.trouble(&mut grid, 30, |grid, load| {
            grid.kill(3);
            load.advance(30);
            grid.restart(3);
        });
        for node in [4, 2] {
            load.trouble(&mut grid, 30, |grid, load| {
                grid.empty(node);
                load.advance(30);
                grid.restart(node);
            });
            grid.await_ready();
        }
        // All of them.
        load.trouble(&mut grid, 30, |grid, _| {
            (0..grid.len()).for_each(|id| grid.kill(id));
            (0..grid.len()).for_each(|id| grid.launch(id));
            (0..grid.len()).for_each(|id| grid.await_line(id));
        });
        load.calm(&grid, 30);
    });
    grid.await_ready();
    grid.stop();
}

/// Transactions of two regions, all of them asked for in the first: servers of either die and freeze, with what they have promised.
fn keeps_its_promise_between_regions(engine: &str) {
    let (replicas, settings) = settings(engine, (2, 1), "storage = \"quorum\"\ncheckpoint-log-bytes = 20000");
    let mut grid = Grid::start(2, replicas, &settings);
    let promise = Promise { level: Level::StrictSerializable, cascades: false, loses: false };
    let doors = [0, 1, 2, 3].map(|node| grid.doors()[node]).to_vec();
    promised_under_load(promise, &doors, 67, |load| {
        for region in [0, 1, 0, 1] {
            load.trouble(&mut grid, 30, |grid, load| {
                let leader = grid.leader(region);
                grid.kill(leader);
                load.advance(30);
                grid.restart(leader);
            });
        }
        for region in [0, 1] {
            load.trouble(&mut grid, 30, |grid, load| {
                let frozen = grid.leader(region);
                grid.signal(frozen, Signal::STOP);
                load.advance(30);
                grid.signal(frozen, Signal::CONT);
                load.advance(30);
            });
        }
        load.calm(&grid, 30);
    });
    // A server that has woken up begins again.
    grid.await_ready();
    grid.stop();
}

#[test]
fn silo_keeps_its_promise_between_regions() {
    keeps_its_promise_between_regions("regions-silo");
}

#[test]
fn a_region_of_silo_keeps_its_promise_while_nodes_die() {
    keeps_its_promise("regions-silo", "quorum");
}

#[test]
fn a_region_of_locks_keeps_its_promise_while_nodes_die() {
    keeps_its_promise("regions-2pl", "full");
}

#[test]
fn a_region_of_versions_keeps_its_promise_while_nodes_die() {
    keeps_its_promise("regions-mvocc", "quorum");
}

/// Scenario 13, and schedule 10 of commit.md: the storage nodes know another leader when the frozen one wakes up.
#[test]
fn a_frozen_server_answers_nothing_as_leader_when_it_wakes_up() {
    let (replicas, settings) = settings("regions-silo", (2, 3), "");
    let grid = Grid::start(1, replicas, &settings);
    let first = grid.leader(0);
    let second = 1 - first;
    let (mut old, mut new) = (grid.client(first), grid.client(second));
    assert_eq!(old.insist("SET k old"), Reply::ok());
    assert_eq!(old.insist("GET k").text(), "old");
    grid.signal(first, Signal::STOP);
    assert_eq!(new.insist("SET k new"), Reply::ok());
    let role = |node| grid.try_status(node).and_then(|status| Some(status["role"].as_str()?.to_owned()));
    until("the second leads", || role(second).as_deref() == Some("leader"));
    // These are asked after the answer of the second, and wait in the socket until the first wakes up.
    old.send(
        &[command(&["GET", "k"]), command(&["APPEND", "k", "+zombie"]), command(&["GET", "k"])].concat(),
    )
    .unwrap();
    grid.signal(first, Signal::CONT);
    let mut has_appended = false;
    for what in ["read", "append", "read"] {
        match old.receive() {
            // A server that lost its ballot may end the connections that it had.
            Err(_) | Ok(Reply::Error(_)) => {}
            Ok(Reply::Int(length)) => {
                assert_eq!(length, "new+zombie".len() as i64, "{what}");
                has_appended = true;
            }
            Ok(reply) => assert!(reply.text().starts_with("new"), "{what}: {reply:?}"),
        }
    }
    let last = new.insist("GET k").text().to_owned();
    assert!(last == "new+zombie" || !has_appended && last == "new", "{last}");
    // On a machine that is busy the first may lead again. Then all are killed, and not stopped: one may just be beginning again.
    until("one leads and the other stands by", || {
        let mut roles = [first, second].map(|node| role(node).unwrap_or_default());
        roles.sort();
        roles == ["leader", "standby"]
    });
}

/// Waits for a metric of a node.
#[track_caller]
fn await_metric(grid: &Grid, node: usize, name: &str, value: u32) {
    let admin = found_admin(grid, node);
    until(name, || {
        let metrics = http(admin, "/metrics").2;
        let found = metrics.lines().find(|line| line.starts_with(&format!("{name}{{")));
        found.is_some_and(|line| line.ends_with(&format!(" {value}.0")))
    });
}

/// Two of three storage nodes are needed for an answer, in both ways of keeping the log.
fn acknowledges_with_two_of_three(storage: &str) {
    let (replicas, settings) = settings("regions-silo", (1, 3), &format!("storage = \"{storage}\""));
    let mut grid = Grid::start(1, replicas, &settings);
    let mut client = grid.client(0);
    assert_eq!(client.insist("SET a 1"), Reply::ok());
    await_metric(&grid, 0, "ordain_storage_configuration", 3);
    grid.kill(1);
    // With `full` when the silent one is left out.
    assert_eq!(client.insist("SET b 1"), Reply::ok());
    assert_eq!(grid.obstacle(0), "ready\n");
    if storage == "full" {
        await_metric(&grid, 0, "ordain_storage_configuration", 2);
    }
    grid.kill(2);
    until("the server says that too few are there", || {
        grid.obstacle(0).contains("region 0 acknowledges no write")
    });
    let said = grid.obstacle(0);
    assert!(
        said.contains("1 of its 3 storage nodes are reached and 2 are needed")
            && said.contains("start nodes 1, 2"),
        "{said}"
    );
    client.send(&command(&["SET", "c", "1"])).unwrap();
    client.socket().set_read_timeout(Some(SOON)).unwrap();
    assert!(client.receive().is_err(), "an answer without a majority of the storage nodes");
    client.socket().set_read_timeout(Some(DEADLINE)).unwrap();
    grid.restart(1);
    let reply = client.receive().unwrap();
    assert!(
        reply == Reply::ok()
            || matches!(&reply, Reply::Error(text) if text.starts_with(b"UNKNOWN") || text.starts_with(b"BUSY")),
        "{reply:?}"
    );
    assert_eq!(client.insist("SET d 1"), Reply::ok());
    grid.restart(2);
    await_metric(&grid, 0, "ordain_storage_configuration", 3);
    assert_eq!(client.insist("MGET a b d").items(), [(); 3].map(|()| Reply::Bulk("1".into())));
    grid.await_ready();
    for (node, role) in [(0, "leader"), (1, "storage"), (2, "storage"), (3, "storage")] {
        assert_eq!(grid.status(node)["role"], role, "node {node}");
    }
    let seen = run(ordain(["cluster", "status", "--config", grid.config().to_str().unwrap()]));
    assert_eq!(seen.code, Some(0), "{seen:?}");
    for node in [0, 1] {
        grid.kill(node);
        let directory = grid.directory(node);
        let verified = run(ordain(["checkpoint", "verify", "--data-dir", directory.to_str().unwrap()]));
        assert_eq!(verified.code, Some(0), "{verified:?}");
    }
    tells_what_a_log_holds(&grid, storage == "full");
}

/// `ordain log` of a stopped server and a stopped storage node.
fn tells_what_a_log_holds(grid: &Grid, has_changed: bool) {
    let log = |command: &str, node: usize, json: &Path| {
        let (directory, json) = (grid.directory(node), json.to_str().unwrap());
        run(ordain(["log", command, "--data-dir", directory.to_str().unwrap(), "--json", json]))
    };
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("log.json");
    log("verify", 0, &json).fails_with(&["has no log", "database server of a region", "storage nodes keep"]);
    let verified = log("verify", 1, &json);
    assert_eq!(verified.code, Some(0), "{verified:?}");
    for words in ["sound: 1 segments, ", "generation ", ", promised ballot ", "node 1 (generation "] {
        assert!(verified.stdout.join("\n").contains(words), "'{words}' is not in: {verified:?}");
    }
    let inspected = log("inspect", 1, &json);
    assert_eq!(inspected.code, Some(0), "{inspected:?}");
    assert!(
        inspected.stdout.join("\n").contains(" line 1  ballot 64 of server 0  node 1 (generation "),
        "{inspected:?}"
    );
    let found: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let lines = found["lines"].as_array().unwrap();
    let kinds = |kind: &str| lines.iter().filter(|line| line["kind"] == kind).count();
    assert!(kinds("entry") >= 3 && kinds("configuration") >= if has_changed { 2 } else { 1 }, "{found}");
    assert!(found["durable_line"].as_u64().unwrap() <= found["last_line"].as_u64().unwrap(), "{found}");
    assert_eq!(found["configuration"]["counted"][0]["generation"], found["generation"], "{found}");
    // A flipped bit is found.
    let segment = grid
        .files(1)
        .into_iter()
        .filter(|file| file.starts_with("log-") && file != "log-base")
        .min()
        .unwrap();
    let path = grid.directory(1).join(segment);
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len().min(600) / 2;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).unwrap();
    log("verify", 1, &json).fails_with(&["log damaged"]);
}

/// Storage nodes that are not there at the beginning, that are dead when the server starts, and that have lost their disks.
#[test]
fn what_a_region_lacks_is_said_by_name() {
    let (replicas, settings) = settings("regions-silo", (1, 3), "storage = \"full\"");
    let mut grid = Grid::start(1, replicas, &settings);
    // Anew, without the last storage node.
    (0..4).for_each(|node| grid.empty(node));
    (0..3).for_each(|node| grid.launch(node));
    (0..3).for_each(|node| grid.await_line(node));
    until("the server names who was not met", || {
        grid.obstacle(0).contains("must be met once, and node 3 was not")
    });
    until("the log has it", || grid.log_of(0).contains("and node 3 was not"));
    let reply = grid.client(0).run("SET a 1");
    assert!(reply.error().starts_with("BUSY") && reply.error().contains("node 3 was not"), "{reply:?}");
    grid.restart(3);
    grid.await_ready();
    assert_eq!(grid.client(0).insist("SET a 1"), Reply::ok());
    // One is dead while the server starts.
    grid.kill(3);
    grid.kill(0);
    grid.restart(0);
    assert_eq!(grid.client(0).insist("SET b 1"), Reply::ok());
    await_metric(&grid, 0, "ordain_storage_configuration", 2);
    grid.restart(3);
    await_metric(&grid, 0, "ordain_storage_configuration", 3);
    // One loses its disk while the server is dead.
    grid.kill(0);
    grid.empty(2);
    grid.restart(2);
    assert!(grid.obstacle(2).contains("does not count yet"), "{}", grid.obstacle(2));
    grid.restart(0);
    grid.await_ready();
    // Two at once.
    [1, 2].into_iter().for_each(|node| grid.empty(node));
    grid.kill(0);
    [1, 2, 0].into_iter().for_each(|node| grid.restart(node));
    until("the server names who has lost what", || grid.obstacle(0).contains("nodes 1, 2 were emptied"));
    until("the log has it", || grid.log_of(0).contains("nodes 1, 2 were emptied"));
    let reply = grid.client(0).run("GET a");
    assert!(reply.error().contains("nodes 1, 2 were emptied"), "{reply:?}");
}

#[test]
fn a_majority_of_the_storage_nodes_acknowledges() {
    acknowledges_with_two_of_three("quorum");
}

#[test]
fn a_silent_storage_node_is_left_out_where_all_have_to_acknowledge() {
    acknowledges_with_two_of_three("full");
}

/// The refusal of `ordain cluster up` with these flags; nothing is left behind.
#[track_caller]
fn cannot_be(flags: &str, words: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let head = ["cluster", "up", "--base-port", "0", "--data-dir", data.to_str().unwrap()];
    run(ordain(head.into_iter().chain(flags.split_whitespace()))).refused_with(words);
    assert!(!data.exists());
}

#[test]
fn regions_that_cannot_be_are_refused() {
    cannot_be("--engine regions-silo --partitions 2", &["storage", "--regions N"]);
    cannot_be("--engine regions-2pl --regions 2 --servers 0", &["servers = 0", "at least one server"]);
    cannot_be(
        "--engine regions-2pl --regions 2 --replicas 0",
        &["servers = 1 with 1 replicas", "at least one storage node"],
    );
    cannot_be("--engine regions-silo --regions 2 --replicas 8", &["8 storage nodes", "at most 7"]);
    cannot_be("--engine regions-silo --regions 17 --replicas 1", &["partitions = 17", "at most 16 regions"]);
    cannot_be(
        "--engine regions-silo --regions 2 --replication async",
        &["replication = \"async\"", "leave replication out"],
    );
    cannot_be("--engine calvin --regions 2", &["storage = \"quorum\"", "engine calvin", "regions-silo"]);
    cannot_be(
        "--engine no-wait --regions 2 --storage full",
        &["storage = \"full\"", "engine no-wait", "regions-2pl"],
    );
}

/// One region needs no storage nodes: a node on its own keeps its log itself.
#[test]
fn a_region_can_be_a_node_on_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(serve_dir(dir.path(), ["--engine", "regions-silo"]));
    assert_eq!(server.client().run("MSET a 1 b 2"), Reply::ok());
    assert_eq!(server.client().run("DBSIZE"), Reply::Int(2));
    server.kill();
    let server = Server::start(serve_dir(dir.path(), ["--engine", "regions-silo"]));
    assert_eq!(server.client().run("MGET a b").items(), [Reply::Bulk("1".into()), Reply::Bulk("2".into())]);
    assert!(!server.client().run("INFO").text().contains("# Regions"));
    server.stop();
}

/// `ordain cluster up` and `status` name servers and storage nodes for what they are.
#[test]
fn a_cluster_of_regions_comes_up_by_one_command() {
    let dir = tempfile::tempdir().unwrap();
    let data: &Path = &dir.path().join("data");
    let flags =
        ["--engine", "regions-silo", "--regions", "1", "--servers", "2", "--replicas", "1", "--threads", "1"];
    let cluster = crate::cluster::Cluster::start(data, &flags);
    assert_eq!(cluster.client(0).insist("SET k v"), Reply::ok());
    assert_eq!(cluster.client(1).insist("GET k").text(), "v", "a standby hands on what it is asked");
    let mut found = Value::Null;
    until("all is well", || {
        found = status(data).1;
        found["ok"] == true && found["digests"] == "equal"
    });
    let mut roles: Vec<&str> =
        found["nodes"].as_array().unwrap().iter().map(|node| node["role"].as_str().unwrap()).collect();
    // On a machine that is busy the second server may lead.
    roles.sort_unstable();
    assert_eq!(roles, ["leader", "standby", "storage"]);
    cluster.stop();
}
