//! Reads on snapshots, on real processes: one state over all partitions whatever is written meanwhile, what a connection
//! was told it sees, and so does another that is given its epoch.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::faults::grid::Grid;
use crate::support::{Client, Expect, Random, Reply, Server, command, run, serve, serve_dir, until};

const ACCOUNTS: usize = 8;
const OPENING: i64 = 100;

fn accounts() -> Vec<String> {
    (0..ACCOUNTS).map(|n| format!("account:{n}")).collect()
}

fn deposit(client: &mut Client) {
    let mut words = vec!["MSET".to_owned()];
    accounts().into_iter().for_each(|account| words.extend([account, OPENING.to_string()]));
    assert_eq!(client.call(&words), Reply::ok());
}

/// Moves money between accounts, mostly of different partitions, until it is told to stop.
fn transfer(door: SocketAddr, seed: u64, is_over: &AtomicBool) {
    let mut random = Random(seed);
    let mut client = Client::connect(door).unwrap();
    while !is_over.load(Ordering::Relaxed) {
        let (from, to) = (random.below(ACCOUNTS as u64), random.below(ACCOUNTS as u64));
        client.run("MULTI");
        client.run(&format!("DECRBY account:{from} 3"));
        client.run(&format!("INCRBY account:{to} 3"));
        assert_eq!(client.run("EXEC").items().len(), 2);
    }
}

fn sum(reply: &Reply) -> i64 {
    reply.items().iter().map(|item| item.text().parse::<i64>().unwrap()).sum()
}

/// Looks at all accounts at once, in a script, and one after the other in a transaction that only reads.
fn look(client: &mut Client) {
    let accounts = accounts();
    let total = ACCOUNTS as i64 * OPENING;
    let all = [&["MGET".to_owned()][..], &accounts].concat();
    assert_eq!(sum(&client.call(&all)), total);
    let script =
        "local sum = 0 for _, key in ipairs(KEYS) do sum = sum + redis.call('GET', key) end return sum";
    let head = ["EVAL_RO".to_owned(), script.to_owned(), ACCOUNTS.to_string()];
    assert_eq!(client.call(&[&head[..], &accounts].concat()).int(), total);
    assert_eq!(client.run("TXN.BEGIN READONLY"), Reply::ok());
    let one_by_one: i64 =
        accounts.iter().map(|key| client.run(&format!("GET {key}")).text().parse::<i64>().unwrap()).sum();
    assert_eq!(client.run("TXN.COMMIT"), Reply::ok(), "what it saw needs no proof");
    assert_eq!(one_by_one, total);
}

fn under_transfers(doors: &[SocketAddr], look_on: impl FnOnce()) {
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        for (seed, door) in (1..).zip(doors) {
            let is_over = &is_over;
            scope.spawn(move || transfer(*door, seed, is_over));
        }
        look_on();
    });
}

#[test]
fn whoever_looks_sees_one_state_of_all_partitions() {
    for (partitions, replicas, reads) in
        [(2, 1, "session"), (2, 1, "previous"), (3, 1, "strict"), (1, 3, "strict")]
    {
        let grid = Grid::start(partitions, replicas, &format!("engine = \"paxflow\"\nreads = \"{reads}\"\n"));
        let mut first = grid.client(0);
        deposit(&mut first);
        let epoch = first.run("CLIENT EPOCH").int();
        under_transfers(&grid.doors(), || {
            for node in 0..grid.len() {
                let mut client = grid.client(node);
                assert_eq!(client.run(&format!("CLIENT EPOCH {epoch}")), Reply::ok());
                // `previous` does not look at epochs that clients bring along.
                until("the deposit is seen", || sum_of_all(&mut client).is_some());
                (0..60).for_each(|_| look(&mut client));
            }
        });
        grid.await_equal_digests();
        grid.stop();
    }
}

fn sum_of_all(client: &mut Client) -> Option<i64> {
    let all = [&["MGET".to_owned()][..], &accounts()].concat();
    let reply = client.call(&all);
    reply.items().iter().all(|item| matches!(item, Reply::Bulk(_))).then(|| sum(&reply))
}

#[test]
fn a_connection_sees_what_it_wrote_and_another_what_it_is_given() {
    let grid = Grid::start(3, 1, "engine = \"paxflow\"\n");
    let (mut anna, mut ben) = (grid.client(0), grid.client(2));
    for n in 1..200 {
        // A key of any partition.
        let key = format!("note:{}", n % 7);
        assert_eq!(anna.run(&format!("SET {key} {n}")), Reply::ok());
        assert_eq!(anna.run(&format!("GET {key}")).text(), n.to_string());
        let epoch = anna.run("CLIENT EPOCH").int();
        assert_eq!(ben.run(&format!("CLIENT EPOCH {epoch}")), Reply::ok());
        assert_eq!(ben.run(&format!("GET {key}")).text(), n.to_string());
        // Sent together: the read comes after the write.
        anna.send(&command(&["INCR", "count"])).unwrap();
        anna.send(&command(&["GET", "count"])).unwrap();
        assert_eq!(anna.receive().unwrap().int(), n);
        assert_eq!(anna.receive().unwrap().text(), n.to_string());
    }
    assert!(grid.client(1).run("CLIENT EPOCH").int() == 0, "a new connection has seen nothing");
    assert!(ben.run("CLIENT EPOCH x").error().starts_with("ERR an epoch"));
    grid.stop();
}

#[test]
fn a_node_that_was_killed_honours_the_epochs_of_before() {
    let dir = tempfile::tempdir().unwrap();
    let start = || Server::start(serve_dir(dir.path(), ["--engine", "paxflow", "--threads", "2"]));
    let server = start();
    let mut client = server.client();
    deposit(&mut client);
    let epoch = client.run("CLIENT EPOCH").int();
    server.kill();
    let server = start();
    let mut client = server.client();
    assert_eq!(client.run(&format!("CLIENT EPOCH {epoch}")), Reply::ok());
    assert_eq!(sum_of_all(&mut client), Some(ACCOUNTS as i64 * OPENING));
    under_transfers(&[server.resp], || (0..100).for_each(|_| look(&mut client)));
    // Nothing of what only read is in the log, and nothing of it went through the sequence.
    until("all of it was read on snapshots", || {
        let (_, _, metrics) = server.http("/metrics");
        let read = metrics.lines().filter(|line| line.starts_with("ordain_shard_snapshot_reads_total"));
        read.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() >= 1_000.0
    });
    server.stop();
}

#[test]
fn ways_to_read_that_do_not_exist_are_refused() {
    run(serve(["--ephemeral", "--reads", "sometimes"]))
        .fails_with(&["'sometimes' is no way to run reads: ordered, previous, session or strict"]);
}
