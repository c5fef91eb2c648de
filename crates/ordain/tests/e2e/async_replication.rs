//! Clusters whose primaries send what they have sealed to their members after they have answered: who is primary, what is lost
//! with one, and how a node that was given up comes back.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::faults::grid::Grid;
use crate::faults::load::under_load;
use crate::support::{Client, Expect, Reply, command, ordain, run, until};

const ASYNC: &str = "replication = \"async\"\n";
/// What was acknowledged for longer than this when a primary died is not lost with it.
const WINDOW: Duration = Duration::from_secs(1);
/// How long a client waits before it asks again.
const PATIENCE: Duration = Duration::from_millis(500);

fn ends_well(grid: Grid) {
    grid.await_ready();
    grid.await_equal_digests();
    grid.stop();
}

/// Clients, one at each node, that write keys which nobody has written.
struct Writers {
    doors: Vec<SocketAddr>,
    is_over: AtomicBool,
    /// By node: each key and when its write was acknowledged.
    acknowledged: Vec<Mutex<BTreeMap<String, Instant>>>,
}

impl Writers {
    fn write(&self, node: usize) {
        let mut number = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            let Ok(mut client) = Client::connect(self.doors[node]) else { continue };
            client.socket().set_read_timeout(Some(PATIENCE)).unwrap();
            while !self.is_over.load(Ordering::Relaxed) {
                number += 1;
                let key = format!("key:{node}:{number}");
                if client.send(&command(&["SET", &key, "value"])).is_err() {
                    break;
                }
                match client.receive() {
                    Ok(Reply::Error(_)) => {}
                    Ok(_) => _ = self.acknowledged[node].lock().unwrap().insert(key, Instant::now()),
                    Err(_) => break,
                }
            }
        }
    }

    fn count(&self, node: usize) -> usize {
        self.acknowledged[node].lock().unwrap().len()
    }

    /// Waits until every one of these nodes has acknowledged so many more.
    #[track_caller]
    fn advance(&self, nodes: impl Iterator<Item = usize>, more: usize) {
        for node in nodes {
            let goal = self.count(node) + more;
            until("a node takes writes", || {
                thread::yield_now();
                self.count(node) >= goal
            });
        }
    }

    /// Waits until what may be lost is not all that there is.
    #[track_caller]
    fn fill(&self) {
        self.advance(0..self.doors.len(), 50);
        let begun = Instant::now();
        until("the writers have worked for a while", || {
            self.advance(0..self.doors.len(), 1);
            begun.elapsed() > WINDOW + WINDOW
        });
    }

    /// Which of the writes are not there, and when they were acknowledged.
    fn lost(&self, grid: &Grid) -> Vec<Instant> {
        let mut client = grid.client(0);
        let mut lost = Vec::new();
        for written in &self.acknowledged {
            let written: Vec<(String, Instant)> =
                written.lock().unwrap().iter().map(|(key, at)| (key.clone(), *at)).collect();
            for part in written.chunks(500) {
                let keys = part.iter().map(|(key, _)| key.as_str());
                let found = client.insist_on(&["MGET"].into_iter().chain(keys).collect::<Vec<_>>());
                let of_part = part.iter().zip(found.items());
                lost.extend(of_part.filter(|(_, value)| **value == Reply::Nil).map(|((_, at), _)| *at));
            }
        }
        lost
    }
}

/// Has clients write to all nodes of a cluster meanwhile.
fn while_written(grid: &mut Grid, faults: impl FnOnce(&mut Grid, &Writers)) -> Writers {
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let acknowledged = (0..grid.len()).map(|_| Mutex::default()).collect();
    let writers = Writers { doors: grid.doors(), is_over: AtomicBool::new(false), acknowledged };
    thread::scope(|scope| {
        let (writers, _over) = (&writers, Over(&writers.is_over));
        (0..grid.len()).for_each(|node| _ = scope.spawn(move || writers.write(node)));
        faults(grid, writers);
    });
    writers
}

#[test]
fn transactions_are_what_they_are_with_one_replica() {
    for (partitions, replicas) in [(2, 2), (1, 3)] {
        let passed = (0..5).any(|_| {
            let grid = Grid::start(partitions, replicas, ASYNC);
            let work = || under_load(&grid.doors(), 41, |load| load.advance(300));
            let worked = panic::catch_unwind(AssertUnwindSafe(work));
            let is_usual = grid.terms().iter().all(|term| *term == Some(1));
            match worked {
                Err(reason) if is_usual => panic::resume_unwind(reason),
                Err(_) => return false,
                Ok(()) => ends_well(grid),
            }
            is_usual
        });
        assert!(passed, "primaries were given up every time");
    }
}

/// A primary is gone for as long as it takes another to be in its place, and comes back.
fn succeed(partitions: usize, replicas: usize) {
    let mut grid = Grid::start(partitions, replicas, ASYNC);
    let primary = grid.leader(0);
    let mut killed = Instant::now();
    let writers = while_written(&mut grid, |grid, writers| {
        writers.fill();
        grid.kill(primary);
        killed = Instant::now();
        let others = (0..grid.len()).filter(|node| *node != primary);
        assert_ne!(grid.leader(0), primary);
        println!("another is primary after {} ms", killed.elapsed().as_millis());
        writers.advance(others, 50);
        println!("all others have taken writes after {} ms", killed.elapsed().as_millis());
        grid.restart(primary);
        // It hears that it was given up, and becomes the same program again.
        grid.await_line(primary);
        writers.advance(0..grid.len(), 50);
    });
    grid.await_ready();
    grid.await_equal_digests();
    let status = grid.status(primary);
    assert!(status["started_over"].as_u64() >= Some(1), "{status}");
    assert!(status["term"].as_u64() > Some(1), "{status}");
    let lost = writers.lost(&grid);
    let too_old = lost.iter().filter(|at| **at + WINDOW < killed).count();
    let all: usize = (0..grid.len()).map(|node| writers.count(node)).sum();
    println!(
        "{} of {all} acknowledged writes are lost, of which {too_old} were older than the window",
        lost.len()
    );
    assert_eq!(too_old, 0);
    if grid.terms().into_iter().sum::<Option<u64>>() == Some(partitions as u64 + 1) {
        assert_eq!((&status["role"], &status["started_over"]), (&"follower".into(), &1.into()), "{status}");
        assert!(
            lost.iter().all(|at| *at <= killed + PATIENCE),
            "what a new primary has acknowledged is there"
        );
    }
    ends_well(grid);
}

#[test]
fn a_primary_that_is_gone_is_succeeded_and_rebuilt() {
    succeed(2, 2);
}

#[test]
fn a_primary_of_one_partition_is_succeeded_too() {
    succeed(1, 3);
}

#[test]
fn what_a_primary_alone_has_is_lost_with_it_and_nobody_keeps_it() {
    let mut grid = Grid::cuttable(2, 2, ASYNC);
    let (primary, member) = (grid.leader(0), 2 - grid.leader(0));
    let (mut cut, mut killed) = (Instant::now(), Instant::now());
    let writers = while_written(&mut grid, |grid, writers| {
        writers.advance(0..grid.len(), 50);
        grid.cut(primary, member);
        grid.cut(member, primary);
        cut = Instant::now();
        // Its own replica has it, and answers.
        writers.advance(primary..primary + 1, 10);
        grid.kill(primary);
        killed = Instant::now();
        // If the configuration service heard in time that the member was behind, nobody is to be primary but who was.
        let begun = Instant::now();
        until("another is primary, or nobody will be", || {
            grid.is_primary(member) || begun.elapsed() > 5 * WINDOW
        });
        grid.heal(primary, member);
        grid.heal(member, primary);
        grid.restart(primary);
        writers.advance(0..grid.len(), 50);
    });
    grid.await_ready();
    grid.await_equal_digests();
    let lost = writers.lost(&grid);
    let rebuilds: Vec<u64> =
        (0..grid.len()).map(|node| grid.status(node)["started_over"].as_u64().unwrap()).collect();
    println!("{} acknowledged writes are lost; nodes were rebuilt {rebuilds:?} times", lost.len());
    if grid.terms()[1] == Some(1) {
        let is_of_then = |at: &&Instant| **at + PATIENCE > cut && **at <= killed + PATIENCE;
        assert_eq!(lost.iter().filter(is_of_then).count(), lost.len(), "only what the member has not got");
    }
    assert!(lost.is_empty() || rebuilds[primary] > 0, "whoever has what is lost does without it");
    ends_well(grid);
}

#[test]
fn a_primary_that_is_back_at_once_has_lost_nothing() {
    let mut grid = Grid::start(2, 2, ASYNC);
    let mut in_time = 0;
    for round in 0..10 {
        let partition = round % 2;
        let primary = grid.leader(partition);
        let term = grid.status(primary)["term"].clone();
        let writers = while_written(&mut grid, |grid, writers| {
            writers.advance(0..grid.len(), 100);
            grid.kill(primary);
            grid.restart(primary);
            writers.advance(0..grid.len(), 50);
        });
        grid.await_ready();
        let now = grid.leader(partition);
        // A machine that was too busy to start it in time has another primary by now.
        if now == primary && grid.status(now)["term"] == term {
            let lost = writers.lost(&grid);
            assert!(lost.is_empty(), "{lost:?}");
            in_time += 1;
        }
        if in_time == 2 {
            break;
        }
    }
    assert!(in_time > 0, "it was given up every time");
    ends_well(grid);
}

#[test]
fn without_two_of_the_configuration_service_nothing_goes_on_until_one_is_back() {
    // The configuration service: nodes 0, 2 and 1.
    let mut grid = Grid::start(2, 2, ASYNC);
    let words = format!("MSET {} 1 {} 1", grid.key_in(0, "key"), grid.key_in(1, "key"));
    let mut client = grid.client(3);
    until("writes go on", || client.run(&words) == Reply::ok());
    // One of them is not missed, once the others agree on that.
    grid.kill(2);
    let mut client = grid.client(0);
    until("writes go on", || client.run(&words) == Reply::ok());
    grid.kill(1);
    until("the configuration service is in its way", || {
        grid.obstacle(0).contains("of the configuration service (nodes 0, 2, 1)")
    });
    grid.restart(1);
    let mut client = grid.client(0);
    until("writes go on", || client.run(&words) == Reply::ok());
    grid.restart(2);
    ends_well(grid);
}

#[test]
fn what_async_cannot_be_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cluster.toml");
    let file = path.to_str().unwrap();
    let write = |partitions: usize, replicas: usize, line: &str| {
        let held: Vec<TcpListener> =
            (0..3 * partitions * replicas).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let mut text = format!(
            "cluster = \"c\"\npartitions = {partitions}\nreplicas = {replicas}\nthreads = 1\n{ASYNC}{line}\n"
        );
        for (id, at) in held.chunks(3).enumerate() {
            let at: Vec<String> = at.iter().map(|held| held.local_addr().unwrap().to_string()).collect();
            let data = dir.path().join(format!("node-{id}"));
            text += &format!(
                "[[node]]\nid = {id}\ncluster = {:?}\nresp = {:?}\nadmin = {:?}\ndata-dir = {:?}\n",
                at[0],
                at[1],
                at[2],
                data.to_str().unwrap()
            );
        }
        fs::write(&path, text).unwrap();
    };
    let serve = |more: &[&str]| run(ordain(["serve", "--node", "0", "--config", file].iter().chain(more)));
    write(3, 1, "");
    serve(&[]).refused_with(&[file, "one replica", "replicas = 2"]);
    write(1, 2, "");
    serve(&[]).refused_with(&[file, "2 nodes", "configuration service of three", "sync"]);
    write(1, 3, "durability = \"none\"");
    serve(&[]).refused_with(&[file, "forgotten", "\"fsync\" or \"os\""]);
    write(1, 3, "ephemeral = true");
    serve(&[]).refused_with(&[file, "ephemeral", "forgotten"]);
    write(1, 3, "");
    serve(&["--durability", "none"]).refused_with(&["forgotten", "\"fsync\" or \"os\""]);
    serve(&["--ephemeral"]).refused_with(&["ephemeral", "forgotten"]);
    assert!(!dir.path().join("node-0").exists());

    let home = dir.path().join("home");
    let up = |more: &[&str]| {
        let words = ["cluster", "up", "--base-port", "0", "--replication", "async", "--data-dir"];
        run(ordain(words.iter().chain(&[home.to_str().unwrap()]).chain(more)))
    };
    up(&["--replicas", "2"]).refused_with(&["2 nodes", "configuration service of three"]);
    up(&["--replicas", "3", "--durability", "none"]).refused_with(&["forgotten"]);
    assert!(!home.exists());
}
