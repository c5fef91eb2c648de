//! `ordain cluster status`: every node of a cluster asked how it is, and their digests held against each other.
//!
//! One node tells which others there are; then each is asked for itself, so that what is shown of a node is what that
//! node says and not hearsay. `DEBUG DIGEST` is a transaction like all others, so digests that are asked for one after
//! another have places in the one order of all transactions in that order. A node that is asked before and after all
//! the others and says the same twice has seen no write between, and neither may the others have.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use ordain_lab::report;
use serde::{Deserialize, Serialize};

use super::{RECORD, Record};

/// How long a node has to take a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// How long it has to answer: it asks its own cluster for at most two seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The longest answer that is read, bytes.
const ANSWER_MAX: u64 = 4 << 20;
/// How often digests that differ are asked for again, in case there are writes.
const ROUNDS: usize = 3;

/// The flags of `ordain cluster status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Write what was found to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Which cluster.
#[derive(Debug, Args)]
pub(super) struct ClusterArgs {
    /// The admin address of any node [default: those of cluster.json in --data-dir, else 127.0.0.1:9121]
    #[arg(long, env = "ORDAIN_ADMIN", value_name = "ADDR")]
    admin: Option<String>,
    /// The data directory of a cluster that `ordain cluster up` runs
    #[arg(long, env = "ORDAIN_DATA_DIR", default_value = "ordain-data", value_name = "DIR")]
    data_dir: PathBuf,
}

impl ClusterArgs {
    /// What the first node of it says that answers.
    ///
    /// # Errors
    /// None does.
    pub(super) fn anyone(&self) -> anyhow::Result<Status> {
        anyone(&candidates(self)?)
    }
}

/// What a node says of itself.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    node: u16,
    cluster: Option<String>,
    role: String,
    leader: Option<u16>,
    term: Option<u64>,
    epoch: u64,
    applied_epoch: u64,
    lag: u64,
    started_over: u32,
    map_version: Option<u64>,
    slots: Option<u64>,
    digest: Option<String>,
    not_ready: Option<String>,
    pub(super) members: Vec<Member>,
    peers: Vec<Peer>,
}

/// A node of the cluster, as a node knows it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Member {
    node: u16,
    pub(super) partition: u16,
    replica: u16,
    pub(super) resp: String,
    admin: String,
}

/// Another node, as a node sees it.
#[derive(Clone, Debug, Deserialize)]
struct Peer {
    state: String,
}

/// How a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    /// All is well.
    Ok,
    /// It does not answer.
    Unreachable,
    /// It answers, and takes no transactions.
    NotReady,
    /// It is another node than is said to be there.
    Stranger,
    /// It has other data than the others.
    Differs,
}

/// A line of the table.
#[derive(Debug, Serialize)]
struct Line {
    node: u16,
    partition: u16,
    replica: u16,
    role: Option<String>,
    leader: Option<u16>,
    term: Option<u64>,
    epoch: Option<u64>,
    applied_epoch: Option<u64>,
    lag: Option<u64>,
    started_over: Option<u32>,
    map_version: Option<u64>,
    slots: Option<u64>,
    digest: Option<String>,
    links_up: usize,
    links: usize,
    resp: String,
    admin: String,
    state: State,
    reason: Option<String>,
}

/// Shows the cluster. True: all is well.
///
/// # Errors
/// No node answers, or not all is well.
pub fn run(args: &StatusArgs) -> anyhow::Result<bool> {
    report::check_writable("--json", args.json.as_deref())?;
    let first = args.cluster.anyone()?;
    let (lines, digests) = look(&first);
    let mut table = report::table(
        &[
            "node",
            "partition",
            "replica",
            "role",
            "term",
            "epoch",
            "lag",
            "slots",
            "map",
            "digest",
            "links",
            "state",
        ],
        12,
    );
    for line in &lines {
        table.add_row(line.cells());
    }
    let (cluster, unwell) = (first.cluster.as_deref(), unwell(&lines));
    if let Some(path) = &args.json {
        let found = serde_json::json!({
            "cluster": cluster,
            "digests": digests.name(),
            "ok": unwell.is_none(),
            "nodes": lines,
        });
        std::fs::write(path, serde_json::to_string_pretty(&found)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    // Whoever reads only the exit code closes the pipe early.
    let _ = writeln!(std::io::stdout(), "{table}\ndigests: {}", digests.name());
    match unwell {
        None => Ok(true),
        Some(unwell) => anyhow::bail!("{unwell}"),
    }
}

/// What the digests have shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Digests {
    /// No node has told one.
    Unknown,
    Equal,
    /// Writes go on, so that those of one moment could not be had.
    Moving,
    Differ,
}

impl Digests {
    /// What can be said of digests that were asked for at one time.
    fn of(asked: &[Result<Status, String>]) -> Digests {
        let mut all = asked.iter().filter_map(|answer| answer.as_ref().ok()?.digest.as_deref());
        match all.next() {
            None => Digests::Unknown,
            Some(first) if all.all(|other| other == first) => Digests::Equal,
            Some(_) => Digests::Moving,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Digests::Unknown => "not available",
            Digests::Equal => "equal",
            Digests::Moving => "not compared, because writes go on",
            Digests::Differ => "differ",
        }
    }
}

/// Where to ask first, and next if nobody is there.
fn candidates(args: &ClusterArgs) -> anyhow::Result<Vec<String>> {
    if let Some(admin) = &args.admin {
        return Ok(vec![admin.clone()]);
    }
    let path = args.data_dir.join(RECORD);
    match std::fs::read(&path) {
        Ok(bytes) => {
            let record: Record = serde_json::from_slice(&bytes).with_context(|| {
                format!(
                    "{} is not what `ordain cluster up` has written: name a node with --admin",
                    path.display()
                )
            })?;
            Ok(record.nodes.into_iter().map(|node| node.admin).collect())
        }
        Err(_) => Ok(vec!["127.0.0.1:9121".to_owned()]),
    }
}

/// What the first of them says that answers.
fn anyone(candidates: &[String]) -> anyhow::Result<Status> {
    let mut reasons = Vec::new();
    for address in candidates {
        match ask(address) {
            Ok(mut status) => {
                if status.members.is_empty() {
                    let (node, resp, admin) = (status.node, String::new(), address.clone());
                    status.members.push(Member { node, partition: 0, replica: 0, resp, admin });
                }
                return Ok(status);
            }
            Err(reason) => reasons.push(format!("{address}: {reason}")),
        }
    }
    anyhow::bail!("no node answers ({}): start the cluster, or name a node with --admin", reasons.join("; "))
}

/// Asks all nodes, and those whose digests differ until these can be compared.
fn look(first: &Status) -> (Vec<Line>, Digests) {
    let members = &first.members;
    let mut asked = ask_all(members);
    let mut seen = (Digests::of(&asked), None);
    for _ in 0..ROUNDS {
        if seen.0 != Digests::Moving {
            break;
        }
        // The one to ask before and after the others: it did answer.
        let yardstick = members.iter().find(|member| member.node == first.node).unwrap_or(&members[0]);
        let before = ask(&yardstick.admin).ok().and_then(|status| status.digest);
        asked = ask_all(members);
        let after = ask(&yardstick.admin).ok().and_then(|status| status.digest);
        let still = after.filter(|after| before.as_ref() == Some(after));
        seen = match (Digests::of(&asked), still) {
            (Digests::Moving, Some(still)) => (Digests::Differ, Some(still)),
            (other, _) => (other, None),
        };
    }
    let (digests, still) = seen;
    let lines = members.iter().zip(asked).map(|(member, answer)| line(member, answer, still.as_deref()));
    let mut lines: Vec<Line> = lines.collect();
    compare_with_masters(&mut lines);
    (lines, digests)
}

/// A slave does not know what its master has sealed and not sent yet: its lag is what it has not executed of that.
fn compare_with_masters(lines: &mut [Line]) {
    let is = |line: &Line, role| line.role.as_deref() == Some(role);
    let masters: BTreeMap<u16, u64> = lines
        .iter()
        .filter(|line| is(line, "master"))
        .filter_map(|line| Some((line.partition, line.epoch?)))
        .collect();
    for line in lines.iter_mut().filter(|line| is(line, "slave")) {
        let sealed = masters.get(&line.partition).copied();
        let behind = sealed.zip(line.applied_epoch).map(|(sealed, applied)| sealed.saturating_sub(applied));
        line.lag = line.lag.max(behind);
    }
}

fn ask_all(members: &[Member]) -> Vec<Result<Status, String>> {
    thread::scope(|scope| {
        let asked: Vec<_> = members.iter().map(|member| scope.spawn(|| ask(&member.admin))).collect();
        let answer = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err("asking it failed".to_owned()))
        };
        asked.into_iter().map(answer).collect()
    })
}

/// A node's line; with the digest that all should have, if they do not.
fn line(member: &Member, answer: Result<Status, String>, still: Option<&str>) -> Line {
    let Member { node, partition, replica, resp, admin } = member.clone();
    let unknown = Line {
        node,
        partition,
        replica,
        role: None,
        leader: None,
        term: None,
        epoch: None,
        applied_epoch: None,
        lag: None,
        started_over: None,
        map_version: None,
        slots: None,
        digest: None,
        links_up: 0,
        links: 0,
        resp,
        admin,
        state: State::Unreachable,
        reason: None,
    };
    let status = match answer {
        Ok(status) => status,
        Err(reason) => return Line { reason: Some(reason), ..unknown },
    };
    let (state, reason) = if status.node != node {
        (State::Stranger, Some(format!("node {} answers there", status.node)))
    } else if let Some(reason) = status.not_ready {
        (State::NotReady, Some(reason))
    } else if still.is_some() && status.digest.as_deref() != still {
        (State::Differs, Some("its digest is not that of the node that was asked first".to_owned()))
    } else {
        (State::Ok, None)
    };
    Line {
        role: Some(status.role),
        leader: status.leader,
        term: status.term,
        epoch: Some(status.epoch),
        applied_epoch: Some(status.applied_epoch),
        lag: Some(status.lag),
        started_over: Some(status.started_over),
        map_version: status.map_version,
        slots: status.slots,
        digest: status.digest,
        links_up: status.peers.iter().filter(|peer| peer.state == "connected").count(),
        links: status.peers.len(),
        state,
        reason,
        ..unknown
    }
}

impl Line {
    fn cells(&self) -> [String; 12] {
        let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let state = match self.state {
            State::Ok => "ok",
            State::Unreachable => "unreachable",
            State::NotReady => "not ready",
            State::Stranger => "another node",
            State::Differs => "different",
        };
        [
            self.node.to_string(),
            self.partition.to_string(),
            self.replica.to_string(),
            self.role.clone().unwrap_or_else(|| "-".to_owned()),
            number(self.term),
            number(self.epoch),
            number(self.lag),
            number(self.slots),
            number(self.map_version),
            self.digest.as_deref().map_or("-", |d| d.get(..12).unwrap_or(d)).to_owned(),
            format!("{}/{}", self.links_up, self.links),
            state.to_owned(),
        ]
    }
}

/// What is wrong, in a line.
fn unwell(lines: &[Line]) -> Option<String> {
    let of = |line: &Line| {
        let what = line.reason.as_deref().unwrap_or("no reason is known");
        format!("node {} at {} is {}: {what}", line.node, line.admin, line.cells()[11])
    };
    let all: Vec<String> = lines.iter().filter(|line| line.state != State::Ok).map(of).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Asks a node how it is.
fn ask(address: &str) -> Result<Status, String> {
    let body = get(address).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "it does not answer in time".to_owned(),
        _ => error.to_string(),
    })?;
    serde_json::from_slice(&body).map_err(|_| "what answers there is no node of ordain".to_owned())
}

fn get(address: &str) -> std::io::Result<Vec<u8>> {
    let resolved: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
    let address = resolved.first().ok_or(ErrorKind::AddrNotAvailable)?;
    let mut stream = TcpStream::connect_timeout(address, CONNECT_WITHIN)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.set_write_timeout(Some(ANSWER_WITHIN))?;
    stream.write_all(format!("GET /status HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_MAX).read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or(ErrorKind::UnexpectedEof)?;
    if !answer.starts_with(b"HTTP/1.") || answer.get(9..12) != Some(b"200") {
        return Err(std::io::Error::other("what answers there is no node of ordain"));
    }
    Ok(answer.split_off(end + 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(node: u16) -> Member {
        Member { node, partition: node, replica: 0, resp: "r".into(), admin: "a".into() }
    }

    fn status(node: u16, digest: &str) -> Status {
        Status { node, digest: Some(digest.into()), ..Status::default() }
    }

    #[test]
    fn digests_that_differ_may_be_of_different_moments() {
        let of = |digests: &[&str]| {
            let answers = digests.iter().map(|digest| Ok(status(0, digest)));
            Digests::of(&answers.chain([Err("gone".into()), Ok(Status::default())]).collect::<Vec<_>>())
        };
        assert_eq!(of(&[]), Digests::Unknown);
        assert_eq!(of(&["a"]), Digests::Equal);
        assert_eq!(of(&["a", "a"]), Digests::Equal);
        assert_eq!(of(&["a", "b"]), Digests::Moving);
    }

    /// Answers every request with what it is told, one after the other, the last for ever.
    fn stand_in(node: u16, digests: &'static [&'static str]) -> Member {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let admin = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            for (times, stream) in listener.incoming().enumerate() {
                let mut stream = stream.unwrap();
                let mut request = [0; 256];
                let _ = stream.read(&mut request).unwrap();
                let digest = digests[times.min(digests.len() - 1)];
                let body = format!("{{\"node\": {node}, \"digest\": \"{digest}\", \"role\": \"leader\"}}");
                write!(stream, "HTTP/1.0 200 OK\r\n\r\n{body}").unwrap();
            }
        });
        Member { admin, ..member(node) }
    }

    #[test]
    fn a_difference_counts_only_if_nothing_was_written_meanwhile() {
        let cluster = |members| Status { members, ..Status::default() };
        let diverged = cluster(vec![stand_in(0, &["a"]), stand_in(1, &["b"])]);
        let (lines, digests) = look(&diverged);
        assert_eq!((digests, lines[0].state, lines[1].state), (Digests::Differ, State::Ok, State::Differs));
        // Another digest at every question.
        let written = cluster(vec![
            stand_in(0, &["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]),
            stand_in(1, &["A", "B", "C", "D", "E"]),
        ]);
        let (lines, digests) = look(&written);
        assert_eq!((digests, unwell(&lines)), (Digests::Moving, None));
        // A write between the two, and then no more.
        let settled = cluster(vec![stand_in(0, &["a", "b"]), stand_in(1, &["b"])]);
        assert_eq!(look(&settled).1, Digests::Equal);
    }

    #[test]
    fn the_lag_of_a_slave_is_what_it_has_not_of_its_masters() {
        let of = |node, partition, role: &str, epoch, applied_epoch| {
            let role = role.to_owned();
            let status = Status { role, epoch, applied_epoch, lag: 1, ..status(node, "a") };
            line(&Member { partition, ..member(node) }, Ok(status), None)
        };
        let mut lines = [
            of(0, 0, "master", 90, 89),
            of(1, 1, "master", 70, 70),
            of(2, 0, "slave", 81, 80),
            of(3, 1, "slave", 75, 74),
            of(4, 2, "slave", 9, 8),
        ];
        compare_with_masters(&mut lines);
        assert_eq!(lines.map(|line| line.lag), [1, 1, 10, 1, 1].map(Some));
    }

    #[test]
    fn a_node_that_is_not_well_is_told_with_its_reason() {
        let ok = line(&member(1), Ok(status(1, "a")), None);
        assert_eq!((ok.state, unwell(&[ok])), (State::Ok, None));
        let lines = [
            line(&member(0), Err("connection refused".into()), None),
            line(&member(1), Ok(Status { not_ready: Some("no leader".into()), ..status(1, "a") }), None),
            line(&member(2), Ok(status(3, "a")), None),
            line(&member(3), Ok(status(3, "b")), Some("a")),
            line(&member(4), Ok(status(4, "a")), Some("a")),
        ];
        let said = unwell(&lines).unwrap();
        for words in [
            "node 0 at a is unreachable: connection refused",
            "node 1 at a is not ready: no leader",
            "node 2 at a is another node: node 3 answers there",
            "node 3 at a is different",
        ] {
            assert!(said.contains(words), "'{words}' is not in: {said}");
        }
        assert!(!said.contains("node 4"), "{said}");
    }

    #[test]
    fn what_a_node_does_not_say_is_not_needed() {
        let old: Status = serde_json::from_str(r#"{"node": 3, "role": "single", "peers": []}"#).unwrap();
        assert_eq!((old.node, old.digest, old.members.len()), (3, None, 0));
    }
}
