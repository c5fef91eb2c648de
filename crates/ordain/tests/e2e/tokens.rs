//! Tokens of engines whose nodes keep them (`CLIENT EPOCH` with walter and fwkv), on real processes: a client that turns to another node with
//! its token misses nothing that it has seen, and no token that it may bring harms a node.

use crate::faults::grid::Grid;
use crate::support::{Client, Expect, Reply, command, until};

/// A cluster of two nodes, each alone in its partition, that hear of each other a second late.
fn late(engine: &str) -> Grid {
    Grid::start(2, 1, &format!("engine = \"{engine}\"\n[option]\npropagate-delay-us = 1000000\n"))
}

fn token(client: &mut Client) -> String {
    client.insist("CLIENT EPOCH").text().to_owned()
}

/// Reads a key of the client's own partition and then one of another, in a transaction whose snapshot the first read has fixed; answers the
/// other one. What `before` is sent in front of it in one piece is to be answered OK.
fn look(client: &mut Client, before: Option<&str>, own: &str, other: &str) -> String {
    let reads =
        ["TXN.BEGIN".to_owned(), format!("GET {own}"), format!("GET {other}"), "TXN.COMMIT".to_owned()];
    let all = before.map(str::to_owned).into_iter().chain(reads);
    let words = |line: String| command(&line.split_whitespace().collect::<Vec<_>>());
    client.send(&all.map(words).collect::<Vec<_>>().concat()).unwrap();
    if before.is_some() {
        assert_eq!(client.receive().unwrap(), Reply::ok());
    }
    let replies: Vec<Reply> = (0..4).map(|_| client.receive().unwrap()).collect();
    assert_eq!((&replies[0], &replies[3]), (&Reply::ok(), &Reply::ok()), "{replies:?}");
    replies[2].text().to_owned()
}

/// Scenario 16 of the sheet fwkv.md.
fn moves_on(engine: &str) {
    let mut grid = late(engine);
    let (x, y) = (grid.key_in(0, "x"), grid.key_in(1, "y"));
    let (mut writer, mut reader) = (grid.client(0), grid.client(1));
    assert_eq!(reader.insist(&format!("SET {y} 0")), Reply::ok());
    assert_eq!(writer.insist(&format!("SET {x} 0")), Reply::ok());
    let mut misses = 0;
    for n in 1..=20 {
        assert_eq!(writer.insist(&format!("SET {x} {n}")), Reply::ok());
        let brought = format!("CLIENT EPOCH {}", token(&mut writer));
        misses += u32::from(look(&mut reader, None, &y, &x) != n.to_string());
        assert_eq!(
            look(&mut reader, Some(&brought), &y, &x),
            n.to_string(),
            "it was seen, and the token says so"
        );
    }
    assert!(misses > 0, "without tokens nothing was missed, so this shows nothing");
    assert!(reader.run("CLIENT EPOCH 17").error().starts_with("ERR this is no token"));
    let brought = token(&mut writer);
    let cut = &brought[..brought.len() - 2];
    assert!(reader.run(&format!("CLIENT EPOCH {cut}")).error().ends_with("as it is"));
    assert_eq!(reader.run("MULTI"), Reply::ok());
    assert_eq!(reader.run("CLIENT EPOCH").text(), "QUEUED");
    assert!(reader.run("EXEC").items()[0].error().contains("outside of MULTI"));

    // Numbers are places in logs: they stay true when all nodes have died.
    assert_eq!(writer.insist(&format!("SET {x} last")), Reply::ok());
    let brought = format!("CLIENT EPOCH {}", token(&mut writer));
    (0..2).for_each(|node| grid.kill(node));
    grid.launch(0);
    grid.restart(1);
    grid.await_line(0);
    let mut reader = grid.client(1);
    assert_eq!(reader.insist(&brought), Reply::ok());
    until("the read is served", || {
        let reply = reader.run(&format!("MGET {y} {x}"));
        !reply.is_error("BUSY") && reply.items()[1].text() == "last"
    });
    grid.stop();
}

#[test]
fn a_client_of_walter_takes_along_what_it_has_seen() {
    moves_on("walter");
}

#[test]
fn a_client_of_fwkv_takes_along_what_it_has_seen() {
    moves_on("fwkv");
}

/// The token of a database of the same name that is further than this one: one that was restored, or a forged one.
#[test]
fn a_token_out_of_the_future_is_refused_and_harms_nobody() {
    let further = Grid::start(2, 1, "engine = \"fwkv\"\n");
    let mut client = further.client(0);
    let keys = [further.key_in(0, "x"), further.key_in(1, "x")];
    for n in 0..200 {
        keys.iter().for_each(|key| assert_eq!(client.insist(&format!("SET {key} {n}")), Reply::ok()));
    }
    let brought = token(&mut client);
    further.stop();

    let grid = Grid::start(2, 1, "engine = \"fwkv\"\n");
    let (mut bringer, mut other) = (grid.client(1), grid.client(1));
    bringer.send(&command(&["CLIENT", "EPOCH", &brought])).unwrap();
    bringer.send(&command(&["INCR", &keys[0]])).unwrap();
    // Others do not wait meanwhile.
    for n in 1..=20 {
        keys.iter().for_each(|key| assert_eq!(other.insist(&format!("INCR {key}")).int(), n));
    }
    let refusal = bringer.receive().unwrap();
    assert!(refusal.error().starts_with("ERR this token names what partition"), "{refusal:?}");
    assert_eq!(bringer.receive().unwrap().int(), 21, "the connection goes on without it");
    for node in 0..2 {
        let mut client = grid.client(node);
        assert_eq!(client.insist(&format!("MSET {} 7 {} 7", keys[0], keys[1])), Reply::ok());
        assert_eq!(client.insist(&format!("INCR {}", keys[node])).int(), 8);
        let brought = token(&mut client);
        assert_eq!(grid.client(1 - node).insist(&format!("CLIENT EPOCH {brought}")), Reply::ok());
    }
    grid.stop();
}

/// A token whose home cannot be asked is answered BUSY, and nothing of it has happened; when its home is back it is taken.
#[test]
fn a_token_whose_home_is_down_waits_for_it_and_not_for_ever() {
    let mut grid = late("walter");
    let (x, y) = (grid.key_in(0, "x"), grid.key_in(1, "y"));
    assert_eq!(grid.client(1).insist(&format!("SET {y} 0")), Reply::ok());
    let mut writer = grid.client(0);
    assert_eq!(writer.insist(&format!("SET {x} 1")), Reply::ok());
    let brought = format!("CLIENT EPOCH {}", token(&mut writer));
    grid.kill(0);
    let mut client = grid.client(1);
    let reply = client.run(&brought);
    // On a machine that is very busy the second may have passed before the node was killed.
    assert!(reply == Reply::ok() || reply.error().starts_with("BUSY partition 0 has no leader"), "{reply:?}");
    assert_eq!(client.insist(&format!("GET {y}")).text(), "0", "its own partition serves");
    grid.restart(0);
    assert_eq!(client.insist(&brought), Reply::ok());
    until("the read is served", || {
        let reply = client.run(&format!("MGET {y} {x}"));
        !reply.is_error("BUSY") && reply.items()[1].text() == "1"
    });
    grid.stop();
}
