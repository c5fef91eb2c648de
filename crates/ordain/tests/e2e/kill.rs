//! kill -9 under load, fifty times on one directory: nothing acknowledged is lost, nothing is done twice, and of
//! what was not acknowledged the connection's first commands were done and the others were not.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::support::{
    Client, DEADLINE, Expect, Process, Random, Reply, Server, command, ordain, run, serve_dir,
};

const ROUNDS: u64 = 50;
const WORKERS: usize = 4;
const ACCOUNTS: u64 = 5;
const BALANCE: i64 = 1000;

/// What a worker does, each under the worker's next number.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Appends the worker's next token to the journal of all.
    Append,
    /// Counts up the worker's own counter.
    Count,
    /// Counts up everybody's counter.
    CountShared,
    /// Moves money between two accounts, and counts the worker's transfers in the same transaction.
    Transfer { from: u64, to: u64, amount: u64 },
}

impl Step {
    fn draw(numbers: &mut Random) -> Step {
        match numbers.below(4) {
            0 => Step::Append,
            1 => Step::Count,
            2 => Step::CountShared,
            _ => {
                let (from, to) = (numbers.below(ACCOUNTS), numbers.below(ACCOUNTS));
                Step::Transfer { from, to, amount: numbers.below(50) }
            }
        }
    }

    fn encode(self, worker: usize, number: u64) -> Vec<u8> {
        match self {
            Step::Append => command(&["APPEND", "journal", &token(worker, number)]),
            Step::Count => command(&["INCR", &format!("count:{worker}")]),
            Step::CountShared => command(&["INCR", "count"]),
            Step::Transfer { from, to, amount } => [
                command(&["MULTI"]),
                command(&["DECRBY", &format!("account:{from}"), &amount.to_string()]),
                command(&["INCRBY", &format!("account:{to}"), &amount.to_string()]),
                command(&["INCR", &format!("transfers:{worker}")]),
                command(&["EXEC"]),
            ]
            .concat(),
        }
    }

    /// The number that says what the step did: of EXEC the last one.
    fn receive(self, client: &mut Client) -> std::io::Result<i64> {
        if let Step::Transfer { .. } = self {
            for expected in ["OK", "QUEUED", "QUEUED", "QUEUED"] {
                assert_eq!(client.receive()?, Reply::Status(expected.into()));
            }
            return Ok(client.receive()?.items()[2].int());
        }
        Ok(client.receive()?.int())
    }
}

fn token(worker: usize, number: u64) -> String {
    format!("{worker}.{number};")
}

/// What one worker knows.
#[derive(Clone, Debug, Default)]
struct Worker {
    /// Steps ever sent: the number of the next.
    sent: u64,
    /// Its own counter, as last acknowledged or found.
    count: i64,
    /// Its transfers, as last acknowledged or found.
    transfers: i64,
    /// Where each acknowledged token ends in the journal.
    tokens: BTreeMap<u64, usize>,
    /// What everybody's counter was for this worker.
    shared: Vec<i64>,
    /// Sent and not acknowledged when the server was killed.
    open: Vec<(u64, Step)>,
}

impl Worker {
    /// Goes on until the connection breaks, telling of every acknowledged step.
    fn load(&mut self, me: usize, server: SocketAddr, numbers: &mut Random, acks: &mpsc::Sender<()>) {
        let Ok(mut client) = Client::connect(server) else { return };
        while self.exchange(me, &mut client, numbers, acks).is_ok() {}
    }

    fn exchange(
        &mut self,
        me: usize,
        client: &mut Client,
        numbers: &mut Random,
        acks: &mpsc::Sender<()>,
    ) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        for _ in 0..=numbers.below(8) {
            let step = Step::draw(numbers);
            bytes.extend(step.encode(me, self.sent));
            self.open.push((self.sent, step));
            self.sent += 1;
        }
        client.send(&bytes)?;
        while let Some((number, step)) = self.open.first().copied() {
            let done = step.receive(client)?;
            self.open.remove(0);
            match step {
                Step::Append => {
                    self.tokens.insert(number, done as usize);
                }
                Step::Count => {
                    self.count += 1;
                    assert_eq!(done, self.count, "an own counter");
                }
                Step::CountShared => self.shared.push(done),
                Step::Transfer { .. } => {
                    self.transfers += 1;
                    assert_eq!(done, self.transfers, "own transfers");
                }
            }
            // Nobody listens any more once the kill is decided.
            let _ = acks.send(());
        }
        Ok(())
    }

    /// Compares with what a server found after the kill, and takes that over. Returns how often this worker's
    /// unacknowledged steps counted up everybody's counter.
    fn check(&mut self, me: usize, client: &mut Client, journal: &BTreeMap<(usize, u64), usize>) -> i64 {
        for (number, end) in &self.tokens {
            assert_eq!(journal.get(&(me, *number)), Some(end), "acknowledged token {me}.{number}");
        }
        let found = |text: &Reply| if *text == Reply::Nil { 0 } else { text.text().parse::<i64>().unwrap() };
        let mut counted = found(&client.run(&format!("GET count:{me}"))) - self.count;
        let mut transferred = found(&client.run(&format!("GET transfers:{me}"))) - self.transfers;
        (self.count, self.transfers) = (self.count + counted, self.transfers + transferred);
        // Those of the open steps that were done come first; where they end only the steps of everybody's counter
        // do not say.
        let (mut shared, mut is_over) = (0, false);
        for (number, step) in std::mem::take(&mut self.open) {
            let is_done = match step {
                Step::CountShared => {
                    shared += i64::from(!is_over);
                    continue;
                }
                Step::Append => journal
                    .get(&(me, number))
                    .inspect(|end| {
                        self.tokens.insert(number, **end);
                    })
                    .is_some(),
                Step::Count => take(&mut counted),
                Step::Transfer { .. } => take(&mut transferred),
            };
            assert!(!(is_done && is_over), "step {me}.{number} was done and one before it was not");
            is_over |= !is_done;
        }
        assert_eq!((counted, transferred), (0, 0), "steps of worker {me} that nobody sent, or lost ones");
        shared
    }
}

fn take(left: &mut i64) -> bool {
    let any = *left > 0;
    *left -= i64::from(any);
    any
}

/// Reads the journal: who appended what, and where it ends. Refuses what nobody sent and what stands there twice.
fn journal(client: &mut Client, workers: &[Worker]) -> BTreeMap<(usize, u64), usize> {
    let (mut found, mut end) = (BTreeMap::new(), 0);
    for token in client.run("GET journal").text().split_inclusive(';') {
        end += token.len();
        let (worker, number) = token.trim_end_matches(';').split_once('.').expect(token);
        let (worker, number): (usize, u64) = (worker.parse().unwrap(), number.parse().unwrap());
        assert!(number < workers[worker].sent, "nobody sent {token}");
        assert_eq!(found.insert((worker, number), end), None, "{token} twice");
    }
    found
}

fn check(server: &Server, workers: &mut [Worker], shared: &mut i64) {
    let mut client = server.client();
    let tokens = journal(&mut client, workers);
    let known: usize = workers.iter().map(|w| w.tokens.len()).sum();
    let open: usize = workers.iter().map(|w| w.open.len()).sum();
    assert!((known..=known + open).contains(&tokens.len()));

    let mut seen: Vec<i64> = workers.iter_mut().flat_map(|w| std::mem::take(&mut w.shared)).collect();
    seen.sort_unstable();
    assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "everybody's counter gave one number twice");
    assert!(seen.first().is_none_or(|least| *least > *shared), "everybody's counter went back");
    let maybe: i64 = workers.iter_mut().enumerate().map(|(me, w)| w.check(me, &mut client, &tokens)).sum();
    let count = match client.run("GET count") {
        Reply::Nil => 0,
        text => text.text().parse::<i64>().unwrap(),
    };
    let least = *shared + seen.len() as i64;
    assert!((least..=least + maybe).contains(&count), "{count} is not within {least} + {maybe}");
    assert!(seen.last().is_none_or(|most| *most <= count));
    *shared = count;

    let accounts =
        (0..ACCOUNTS).map(|i| client.run(&format!("GET account:{i}")).text().parse::<i64>().unwrap());
    assert_eq!(accounts.sum::<i64>(), ACCOUNTS as i64 * BALANCE, "money came or went");
}

#[test]
fn fifty_kills_under_load_lose_nothing_that_was_acknowledged() {
    kill_under_load("calvin", ROUNDS);
}

#[test]
fn kills_of_a_node_that_executes_in_queues_lose_nothing_that_was_acknowledged() {
    kill_under_load("qstore", 10);
}

#[test]
fn kills_of_a_node_with_a_lock_manager_lose_nothing_that_was_acknowledged() {
    kill_under_load("calvin-paper", 5);
}

fn kill_under_load(engine: &str, rounds: u64) {
    let dir = tempfile::tempdir().unwrap();
    let mut numbers = Random(0x0bad_5eed);
    let mut workers = vec![Worker::default(); WORKERS];
    let (mut shared, mut acknowledged) = (0, 0);

    let server = Server::start(serve_dir(dir.path(), ["--engine", engine, "--threads", "2"]));
    let mut client = server.client();
    for account in 0..ACCOUNTS {
        assert_eq!(client.run(&format!("SET account:{account} {BALANCE}")), Reply::ok());
    }
    server.kill();

    for round in 0..rounds {
        let threads = ["1", "2"][numbers.below(2) as usize];
        let durability = if round % 4 == 3 { "os" } else { "fsync" };
        let start =
            || serve_dir(dir.path(), ["--engine", engine, "--threads", threads, "--durability", durability]);
        if round % 5 == 4 {
            // Killed while it recovers, or just after.
            let process = Process::spawn(start());
            let _ = process.line_within(Duration::from_millis(numbers.below(60)));
            process.kill();
        }
        let server = Server::start(start());
        check(&server, &mut workers, &mut shared);
        let kill_after = 1 + numbers.below(300);
        let killed = AtomicBool::new(false);
        thread::scope(|scope| {
            let (sender, acks) = mpsc::channel();
            for (me, worker) in workers.iter_mut().enumerate() {
                let (address, sender, mut numbers) = (server.resp, sender.clone(), Random(numbers.next()));
                let killed = &killed;
                scope.spawn(move || {
                    worker.load(me, address, &mut numbers, &sender);
                    assert!(killed.load(Ordering::Relaxed), "a connection ended before the kill");
                });
            }
            drop(sender);
            for _ in 0..kill_after {
                acks.recv_timeout(DEADLINE).expect("the load stands still");
            }
            killed.store(true, Ordering::Relaxed);
            server.process().signal(rustix::process::Signal::KILL);
        });
        acknowledged += kill_after;
        assert_eq!(server.wait().code, None, "it was killed");
    }

    let server = Server::start(serve_dir(dir.path(), ["--engine", engine, "--threads", "2"]));
    check(&server, &mut workers, &mut shared);
    let digest = server.client().run("DEBUG DIGEST");
    server.stop();
    let verified = run(ordain(["log", "verify", "--data-dir", dir.path().to_str().unwrap()]));
    assert_eq!(verified.code, Some(0), "{verified:?}");
    let server = Server::start(serve_dir(dir.path(), ["--engine", engine, "--threads", "1"]));
    check(&server, &mut workers, &mut shared);
    assert_eq!(server.client().run("DEBUG DIGEST"), digest);
    server.stop();
    assert!(acknowledged >= rounds, "there was no load");
}
