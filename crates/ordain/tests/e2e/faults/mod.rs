//! Real clusters of processes while things go wrong: nodes are killed, frozen and cut off under load, and what clients
//! saw is judged ([`load`]).
//!
//! `ORDAIN_TEST_ROUNDS=N` does everything N times as often.

pub mod grid;
pub mod load;
pub mod wires;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use self::grid::Grid;
use self::load::{Load, under_load};
use crate::support::{Client, Expect, Random, Reply, command};

fn rounds(usual: u64) -> u64 {
    let more = std::env::var("ORDAIN_TEST_ROUNDS").ok().and_then(|text| text.parse::<u64>().ok());
    usual * more.unwrap_or(1)
}

/// Ends a test: all is well again, and everybody has the same.
fn settle(grid: Grid) {
    grid.await_ready();
    grid.await_equal_digests();
    grid.stop();
}

#[test]
fn nodes_of_one_replica_are_killed_and_come_back() {
    let mut grid = Grid::start(3, 1, "");
    let mut numbers = Random(31);
    let doors = grid.doors();
    under_load(&doors, 31, |load| {
        for _ in 0..rounds(3) {
            load.advance(60 + numbers.below(60));
            let id = numbers.below(3) as usize;
            grid.kill(id);
            grid.restart(id);
        }
        // All of them, at once as nearly as can be.
        load.advance(60);
        (0..3).for_each(|id| grid.kill(id));
        (0..3).for_each(|id| grid.restart(id));
        load.advance(60);
    });
    settle(grid);
}

#[test]
fn a_node_of_one_replica_stands_still_and_goes_on() {
    let grid = Grid::start(3, 1, "");
    let doors = grid.doors();
    under_load(&doors, 32, |load| {
        for round in 0..rounds(3) as usize {
            load.advance(80);
            let (frozen, other) = (round % 3, (round + 1) % 3);
            grid.signal(frozen, Signal::STOP);
            grid.await_loss(frozen, other);
            grid.signal(frozen, Signal::CONT);
        }
        load.advance(80);
    });
    settle(grid);
}

/// Any one node may be missing, and work goes on.
fn survive(grid: &mut Grid, load: &Load, numbers: &mut Random) {
    load.advance(80);
    let (kind, id) = (numbers.below(3), numbers.below(grid.len() as u64) as usize);
    match kind {
        0 => {
            grid.kill(id);
            load.advance(80);
            grid.restart(id);
        }
        1 => {
            let leader = grid.leader(id % grid.partitions);
            grid.kill(leader);
            load.advance(80);
            grid.restart(leader);
        }
        _ => {
            grid.signal(id, Signal::STOP);
            load.advance(80);
            grid.await_loss(id, (id + 1) % grid.len());
            grid.signal(id, Signal::CONT);
        }
    }
    // One at a time: it has to be back before another may go.
    grid.await_ready();
}

#[test]
fn one_node_at_a_time_is_not_missed() {
    let mut grid = Grid::start(2, 3, "");
    let mut numbers = Random(33);
    let doors = grid.doors();
    under_load(&doors, 33, |load| {
        for _ in 0..rounds(5) {
            survive(&mut grid, load, &mut numbers);
        }
        load.advance(80);
    });
    settle(grid);
}

/// Slots go to and fro while clients use what is in them, and nodes are killed meanwhile (calvin.md, section 8, scenario 17).
#[test]
fn slots_move_under_load_while_nodes_are_killed() {
    let mut grid = Grid::start(2, 3, "");
    let mut numbers = Random(37);
    let doors = grid.doors();
    under_load(&doors, 37, |load| {
        for round in 0..rounds(4) as usize {
            load.advance(60);
            let (by, killed) = (round % grid.len(), numbers.below(grid.len() as u64) as usize);
            // One at a time they are copied before.
            let moves = [(("0-799", 20), 1), (("400-1023", 20), 0), (("0-1023", 20), 1), (("500-530", 1), 0)];
            let (slots, to) = moves[round % moves.len()];
            let mover = grid.relocate(by, slots, to);
            load.advance(20);
            grid.kill(killed);
            load.advance(40);
            grid.restart(killed);
            let ended = mover.wait();
            assert_eq!(ended.code, Some(0), "{ended:?}");
            grid.await_ready();
        }
        load.advance(80);
    });
    let slots = |id| grid.status(id)["slots"].as_u64().unwrap();
    assert_eq!(slots(0) + slots(1), 1024);
    assert!(grid.status(0)["map_version"].as_u64().unwrap() > 20);
    settle(grid);
}

#[test]
fn one_node_at_a_time_is_not_missed_across_continents() {
    let mut grid = Grid::start(2, 3, "latency-us = 50000\n");
    let doors = grid.doors();
    under_load(&doors, 34, |load| {
        for round in 0..rounds(2) as usize {
            load.advance(20);
            let id = grid.leader(round % 2);
            grid.kill(id);
            load.advance(20);
            grid.restart(id);
            grid.await_ready();
        }
        load.advance(20);
    });
    settle(grid);
}

#[test]
fn links_are_cut_and_heal() {
    let grid = Grid::cuttable(2, 3, "");
    let doors = grid.doors();
    under_load(&doors, 35, |load| {
        for round in 0..rounds(2) as usize {
            load.advance(80);
            // A leader, cut off from everybody.
            let alone = grid.leader(round % 2);
            let others: Vec<usize> = (0..6).filter(|id| *id != alone).collect();
            others.iter().for_each(|id| grid.cut(alone, *id));
            others.iter().for_each(|id| grid.cut(*id, alone));
            load.advance(80);
            grid.await_loss(alone, others[0]);
            others.iter().for_each(|id| grid.heal(alone, *id));
            others.iter().for_each(|id| grid.heal(*id, alone));
            grid.await_ready();
            // What a leader says to one of its members is lost, and what that says is not.
            load.advance(80);
            let (leader, member) = (grid.leader(round % 2), (grid.leader(round % 2) + 2) % 6);
            grid.cut(leader, member);
            load.advance(80);
            grid.await_loss(leader, member);
            grid.heal(leader, member);
            grid.await_ready();
        }
        load.advance(80);
    });
    settle(grid);
}

#[test]
fn two_nodes_of_one_replica_are_cut_off_from_each_other() {
    let grid = Grid::cuttable(3, 1, "");
    let doors = grid.doors();
    under_load(&doors, 36, |load| {
        for (one, other) in [(0, 1), (2, 1)] {
            load.advance(60);
            grid.cut(one, other);
            grid.await_loss(one, other);
            grid.cut(other, one);
            grid.await_loss(other, one);
            grid.heal(one, other);
            grid.heal(other, one);
            load.advance(60);
        }
    });
    settle(grid);
}

/// How long after `since` a node answers a write that was asked for later.
fn answers(client: &mut Client, since: Instant, words: &str) -> Duration {
    loop {
        match client.run(words) {
            Reply::Error(_) => {}
            _ => return since.elapsed(),
        }
    }
}

/// The same, for a client that does not wait for an answer for long, but asks again.
fn resumes(door: SocketAddr, since: Instant, words: &str) -> Duration {
    let words: Vec<&str> = words.split(' ').collect();
    loop {
        let mut client = Client::connect(door).unwrap();
        client.socket().set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        client.send(&command(&words)).unwrap();
        if !matches!(client.receive(), Err(_) | Ok(Reply::Error(_))) {
            return since.elapsed();
        }
    }
}

/// More than a link keeps for a node that is away, and more slowly than it is made.
#[test]
fn answers_that_take_their_time_all_arrive() {
    let grid = Grid::wired(2, 1, "");
    let keys: Vec<String> = (0..96).map(|i| grid.key_in(1, &format!("large:{i}"))).collect();
    let value = |i: usize| vec![i as u8; 1 << 20];
    let mut loader = grid.client(1);
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(loader.insist_on(&[b"SET", key.as_bytes(), &value(i)]), Reply::ok());
    }
    grid.wires().slow_down(1, 0, 25_000_000);
    std::thread::scope(|scope| {
        for (i, key) in keys.iter().enumerate() {
            let mut client = grid.client(0);
            scope.spawn(move || assert!(client.call(&["GET", key]).bytes() == value(i), "{key}"));
        }
    });
    assert!(!grid.has_given_up(1));
    settle(grid);
}

/// Calvin.md, section 4.11; at default timeouts two seconds are wanted, and a busy machine has more.
#[test]
fn writes_go_on_soon_after_a_leader_is_killed() {
    let mut grid = Grid::start(2, 3, "");
    let keys = [grid.key_in(0, "key"), grid.key_in(1, "key")];
    let [its, other] = [0, 1].map(|partition| format!("INCR {}", keys[partition]));
    let both = format!("MSET {} 1 {} 1", keys[0], keys[1]);
    // Every node has seen the leader.
    (0..grid.len()).for_each(|id| _ = grid.client(id).run(&both));
    let leader = grid.leader(0);
    // The leader's neighbour, which has lost a part of its replica; and one of a replica that is whole.
    let (broken, whole) = (leader + 1, (leader + 3) % 6);
    let asks = [("its partition", &its), ("the other partition", &other), ("both", &both)];
    let doors = [("its own replica", broken), ("another replica", whole)];
    let mut asked = Vec::new();
    for (what, words) in asks {
        for (of, id) in doors {
            asked.push((format!("{what}, by a node of {of}"), grid.doors()[id], grid.client(id), words));
        }
    }
    grid.kill(leader);
    let since = Instant::now();
    std::thread::scope(|scope| {
        for (what, door, client, words) in &mut asked {
            let (words, door): (&str, _) = (words, *door);
            scope.spawn(move || {
                let patient = scope.spawn(move || answers(client, since, words));
                let soonest = resumes(door, since, words);
                let longest = patient.join().unwrap();
                let (ms, at_once) = (soonest.as_millis(), longest.as_millis());
                println!("writes go on after {ms:>5} ms, one that was asked for at once took {at_once:>5} ms: {what}");
                assert!(soonest.max(longest) < Duration::from_secs(10), "{what}");
            });
        }
    });
    grid.restart(leader);
    settle(grid);
}
