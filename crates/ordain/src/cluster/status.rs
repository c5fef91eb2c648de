//! `ordain cluster status`: the status of every node of a cluster, and their digests compared.
//!
//! One node lists the others; then each is asked for its own status. No transaction is run: each node shows digests of its part of the data at the ends of
//! several late epochs. Nodes of one partition must have the same one at the end of the same epoch; the digests of all
//! partitions at the end of one epoch add up to that of all data, which is what `DEBUG DIGEST` answers. Where every partition has an
//! order of its own, as with engines that log decisions, an epoch is a place of its log, and there is no such sum.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::Args;
use ordain_engines::registry::{Engine, Family};
use ordain_lab::report;
use ordain_model::{Digest, DigestSpan, Epoch};
use ordain_node::admin_client::Target;
use serde::{Deserialize, Serialize};

use super::access::{ClusterArgs, Way, explain};

/// How often digests are asked for again that have no epoch in common, and how long after.
const ROUNDS: usize = 10;
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(150);

/// The flags of `ordain cluster status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Write what was found to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The status of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    node: u16,
    engine: String,
    cluster: Option<String>,
    resp: String,
    /// The address for clients in TLS, if there is one.
    pub(super) tls: Option<String>,
    role: String,
    leader: Option<u16>,
    term: Option<u64>,
    epoch: u64,
    applied_epoch: u64,
    lag: u64,
    #[serde(rename = "started_over")]
    rebuilds: u32,
    map_version: Option<u64>,
    slots: Option<u64>,
    digest: Option<String>,
    digest_epoch: Option<u64>,
    digests: Vec<Span>,
    not_ready: Option<String>,
    pub(super) members: Vec<Member>,
    peers: Vec<Peer>,
}

/// The digest of a node's data at the ends of some epochs, as `/status` has it.
#[derive(Clone, Debug, Deserialize)]
struct Span {
    first_epoch: u64,
    last_epoch: u64,
    digest: String,
}

impl Span {
    fn parse(&self) -> Option<DigestSpan> {
        let (records, sum) = self.digest.split_at_checked(8)?;
        let digest = Digest {
            records: u32::from_str_radix(records, 16).ok()?,
            sum: u128::from_str_radix(sum, 16).ok()?,
        };
        Some(DigestSpan { first: Epoch(self.first_epoch), last: Epoch(self.last_epoch), digest })
    }
}

impl Status {
    /// True if all partitions have one order, so that an epoch is the same moment on all of them.
    fn has_one_order(&self) -> bool {
        let engine = self.engine.parse::<Engine>();
        engine.map_or(true, |engine| engine.info().family == Family::Deterministic)
    }

    /// The digests that it shows, in order of epochs.
    fn spans(&self) -> Vec<DigestSpan> {
        let mut spans: Vec<DigestSpan> = self.digests.iter().filter_map(Span::parse).collect();
        spans.sort_by_key(|span| span.first);
        spans
    }
}

/// A node of the cluster, as a node knows it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Member {
    node: u16,
    pub(super) partition: u16,
    replica: u16,
    pub(super) resp: String,
    admin: String,
    #[serde(default)]
    admin_tls: bool,
}

impl Member {
    /// The member's admin server.
    pub(super) fn target(&self) -> Target {
        Target { address: self.admin.clone(), is_tls: self.admin_tls }
    }
}

/// The reason why nothing is known of a node, and the state that it counts as.
#[derive(Clone, Debug)]
pub(super) struct Unasked {
    state: State,
    pub(super) reason: String,
}

impl Unasked {
    fn gone(reason: &str) -> Unasked {
        Unasked { state: State::Unreachable, reason: reason.to_owned() }
    }
}

/// Another node, as a node sees it.
#[derive(Clone, Debug, Deserialize)]
struct Peer {
    state: String,
}

/// The state of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    /// All is well.
    Ok,
    /// It does not answer.
    #[default]
    Unreachable,
    /// It refuses its status to this user.
    Refused,
    /// It answers, and takes no transactions.
    NotReady,
    /// Another node answers at its address.
    Stranger,
    /// It has other data than the others.
    Differs,
}

/// A line of the table.
#[derive(Debug, Default, Serialize)]
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
    #[serde(rename = "started_over")]
    rebuilds: Option<u32>,
    map_version: Option<u64>,
    slots: Option<u64>,
    digest: Option<String>,
    digest_epoch: Option<u64>,
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
    let way = args.cluster.way()?;
    let first = anyone(&way)?;
    let (lines, found) = look(&way, &first);
    let digests = found.digests;
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
    let summary = serde_json::json!({
        "cluster": cluster,
        "digests": digests.name(),
        "digest": found.whole.map(|whole| whole.digest.to_string()),
        "digest_epoch": found.whole.map(|whole| whole.last.0),
        "ok": unwell.is_none(),
        "nodes": lines,
    });
    report::write_json(args.json.as_deref(), &summary)?;
    // A script that needs only the exit code closes the pipe early.
    let whole = found
        .whole
        .map(|whole| format!("; of all data at the end of epoch {}: {}", whole.last, whole.digest));
    let _ = writeln!(std::io::stdout(), "{table}\ndigests: {}{}", digests.name(), whole.unwrap_or_default());
    match unwell {
        None => Ok(true),
        Some(unwell) => anyhow::bail!("{unwell}"),
    }
}

/// The result of comparing digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Digests {
    /// No node has one.
    Unknown,
    Equal,
    /// Some nodes have none of the same epoch.
    Moving,
    Differ,
}

/// The comparison of all nodes' digests.
#[derive(Debug)]
struct Compared {
    digests: Digests,
    /// The nodes that have other data than most of their partition, by place in the list.
    odd: Vec<usize>,
    /// The digest of all partitions together, if they have an epoch in common.
    whole: Option<DigestSpan>,
}

impl Compared {
    /// Compares what was asked of these nodes.
    fn of(members: &[Member], asked: &[Result<Status, Unasked>]) -> Compared {
        let has_one_order = asked.iter().flatten().all(Status::has_one_order);
        let mut groups: BTreeMap<u16, Vec<(usize, Vec<DigestSpan>)>> = BTreeMap::new();
        for (at, (member, answer)) in members.iter().zip(asked).enumerate() {
            let spans = answer.as_ref().map(Status::spans).unwrap_or_default();
            if !spans.is_empty() {
                groups.entry(member.partition).or_default().push((at, spans));
            }
        }
        let mut found = Compared { digests: Digests::Unknown, odd: Vec::new(), whole: None };
        let mut is_moving = false;
        for group in groups.values() {
            let [(first, yardstick), others @ ..] = &group[..] else { continue };
            let compared = others.iter().map(|(at, spans)| (*at, are_same(yardstick, spans)));
            let compared: Vec<(usize, Option<bool>)> = compared.collect();
            is_moving |= compared.iter().any(|(_, same)| same.is_none());
            let with = |same| compared.iter().filter(move |c| c.1 == Some(same)).map(|c| c.0);
            // The first is the odd one out if most of the others are not like it.
            if with(false).count() > with(true).count() + 1 {
                found.odd.extend(std::iter::once(*first).chain(with(true)));
            } else {
                found.odd.extend(with(false));
            }
        }
        let mut all = groups.values().filter_map(|group| group.first().map(|(_, spans)| spans.clone()));
        let first = all.next();
        let partitions: BTreeSet<u16> = members.iter().map(|member| member.partition).collect();
        if groups.len() == partitions.len() && (has_one_order || partitions.len() == 1) {
            let together =
                first.map(|first| all.fold(first, |sum, spans| DigestSpan::meet_all(&sum, &spans)));
            found.whole = together.and_then(|spans| spans.last().copied());
        }
        found.digests = match (groups.is_empty(), found.odd.is_empty()) {
            (true, _) => Digests::Unknown,
            (_, false) => Digests::Differ,
            (_, true) if is_moving => Digests::Moving,
            (_, true) => Digests::Equal,
        };
        found
    }
}

/// Tells whether two nodes had the same data at the end of the last epoch of which both know; nothing if there is none.
fn are_same(one: &[DigestSpan], other: &[DigestSpan]) -> Option<bool> {
    let meets = |a: &DigestSpan, b: &DigestSpan| a.first.max(b.first) <= a.last.min(b.last);
    let pairs = one.iter().flat_map(|a| other.iter().filter(|b| meets(a, b)).map(move |b| (a, b)));
    pairs.max_by_key(|(a, b)| a.last.min(b.last)).map(|(a, b)| a.digest == b.digest)
}

impl Digests {
    const fn name(self) -> &'static str {
        match self {
            Digests::Unknown => "not available",
            Digests::Equal => "equal",
            Digests::Moving => "not compared, because some nodes have none of the same epoch",
            Digests::Differ => "differ",
        }
    }
}

/// The status of the first node that answers.
///
/// # Errors
/// None does.
pub(super) fn anyone(way: &Way) -> anyhow::Result<Status> {
    let mut reasons = Vec::new();
    let mut is_there = false;
    for target in &way.candidates {
        match ask(way, target) {
            Ok(mut status) => {
                if status.members.is_empty() {
                    status.members.push(Member {
                        node: status.node,
                        partition: 0,
                        replica: 0,
                        resp: status.resp.clone(),
                        admin: target.address.clone(),
                        admin_tls: target.is_tls,
                    });
                }
                return Ok(status);
            }
            Err(unasked) => {
                is_there |= unasked.state == State::Refused;
                // Nodes of one file refuse for one reason.
                if !reasons.iter().any(|(_, reason)| *reason == unasked.reason) {
                    reasons.push((target, unasked.reason));
                }
            }
        }
    }
    let reasons: Vec<String> =
        reasons.into_iter().map(|(target, reason)| format!("{target}: {reason}")).collect();
    anyhow::ensure!(!is_there, "no node tells how it is ({})", reasons.join("; "));
    anyhow::bail!("no node answers ({}): start the cluster, or name a node with --admin", reasons.join("; "))
}

/// Asks all nodes, and again until their digests can be compared.
fn look(way: &Way, first: &Status) -> (Vec<Line>, Compared) {
    let members = &first.members;
    let mut asked = ask_all(way, members);
    let mut found = Compared::of(members, &asked);
    for _ in 0..ROUNDS {
        let is_known = found.whole.is_some() || !first.has_one_order();
        if matches!(found.digests, Digests::Equal | Digests::Differ) && is_known {
            break;
        }
        if asked.iter().all(Result::is_err) || found.digests == Digests::Unknown {
            break;
        }
        thread::sleep(ASK_AGAIN_AFTER);
        asked = ask_all(way, members);
        found = Compared::of(members, &asked);
    }
    let lines = members.iter().zip(asked).enumerate();
    let lines = lines.map(|(at, (member, answer))| line(member, answer, found.odd.contains(&at)));
    let mut lines: Vec<Line> = lines.collect();
    compare_with_primaries(&mut lines);
    (lines, found)
}

/// A follower does not know what its primary has sealed and not sent yet: its lag is what it has not executed of that.
fn compare_with_primaries(lines: &mut [Line]) {
    let is = |line: &Line, role| line.role.as_deref() == Some(role);
    let primaries: BTreeMap<u16, u64> = lines
        .iter()
        .filter(|line| is(line, "primary"))
        .filter_map(|line| Some((line.partition, line.epoch?)))
        .collect();
    for line in lines.iter_mut().filter(|line| is(line, "follower")) {
        let sealed = primaries.get(&line.partition).copied();
        let behind = sealed.zip(line.applied_epoch).map(|(sealed, applied)| sealed.saturating_sub(applied));
        line.lag = line.lag.max(behind);
    }
}

fn ask_all(way: &Way, members: &[Member]) -> Vec<Result<Status, Unasked>> {
    thread::scope(|scope| {
        let asked: Vec<_> = members.iter().map(|member| scope.spawn(|| ask(way, &member.target()))).collect();
        let answer = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err(Unasked::gone("asking it failed")))
        };
        asked.into_iter().map(answer).collect()
    })
}

/// A node's line; `is_odd`: it has other data than most of its partition.
fn line(member: &Member, answer: Result<Status, Unasked>, is_odd: bool) -> Line {
    let Member { node, partition, replica, resp, .. } = member.clone();
    let admin = member.target().to_string();
    let unknown = Line { node, partition, replica, resp, admin, ..Line::default() };
    let status = match answer {
        Ok(status) => status,
        Err(Unasked { state, reason }) => return Line { state, reason: Some(reason), ..unknown },
    };
    let (state, reason) = if status.node != node {
        (State::Stranger, Some(format!("node {} answers there", status.node)))
    } else if let Some(reason) = status.not_ready {
        (State::NotReady, Some(reason))
    } else if is_odd {
        let epoch = status.digest_epoch.unwrap_or_default();
        let reason = format!(
            "its digest at the end of the same epoch is not that of the other nodes of its partition (the last it shows is \
             of epoch {epoch})"
        );
        (State::Differs, Some(reason))
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
        rebuilds: Some(status.rebuilds),
        map_version: status.map_version,
        slots: status.slots,
        digest: status.digest,
        digest_epoch: status.digest_epoch,
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
            State::Refused => "refused",
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

/// All that is wrong, in a line.
fn unwell(lines: &[Line]) -> Option<String> {
    let of = |line: &Line| {
        let what = line.reason.as_deref().unwrap_or("no reason is known");
        format!("node {} at {} is {}: {what}", line.node, line.admin, line.cells()[11])
    };
    let all: Vec<String> = lines.iter().filter(|line| line.state != State::Ok).map(of).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Asks a node how it is.
pub(super) fn ask(way: &Way, target: &Target) -> Result<Status, Unasked> {
    let body = way.get(target, "/status").map_err(|error| Unasked {
        state: if error.is_about_login() { State::Refused } else { State::Unreachable },
        reason: explain(&error),
    })?;
    serde_json::from_slice(&body).map_err(|_| Unasked::gone("what answers there is no node of ordain"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(node: u16) -> Member {
        Member { node, partition: node, replica: 0, resp: "r".into(), admin: "a".into(), admin_tls: false }
    }

    /// Sums of digests, with the first and the last epoch at whose ends they held.
    type Shown<'a> = &'a [(u64, u64, u128)];

    /// A node that shows digests with these sums at the ends of these epochs.
    fn status(node: u16, digests: Shown<'_>) -> Status {
        let span = |(first_epoch, last_epoch, sum): &(u64, u64, u128)| Span {
            first_epoch: *first_epoch,
            last_epoch: *last_epoch,
            digest: Digest { sum: *sum, records: 1 }.to_string(),
        };
        // The last comes first.
        Status { node, digests: digests.iter().rev().map(span).collect(), ..Status::default() }
    }

    /// What is found out of nodes, each with its partition and its digests.
    fn compared(nodes: &[(u16, Shown<'_>)]) -> (Digests, Vec<usize>, Option<(u64, u128)>) {
        let of = |partition: u16| Member { partition, ..member(0) };
        let members: Vec<Member> = nodes.iter().map(|(partition, _)| of(*partition)).chain([of(0)]).collect();
        let asked =
            nodes.iter().map(|(_, digests)| Ok(status(0, digests))).chain([Err(Unasked::gone("gone"))]);
        let found = Compared::of(&members, &asked.collect::<Vec<_>>());
        (found.digests, found.odd, found.whole.map(|whole| (whole.last.0, whole.digest.sum)))
    }

    #[test]
    fn nodes_of_a_partition_are_compared_at_the_end_of_the_same_epoch() {
        assert_eq!(compared(&[]), (Digests::Unknown, vec![], None));
        assert_eq!(compared(&[(0, &[(1, 9, 7)])]), (Digests::Equal, vec![], Some((9, 7))));
        // The second is an epoch behind, and had the same digest then.
        let behind = compared(&[(0, &[(1, 4, 7), (5, 5, 8)]), (0, &[(2, 4, 7)])]);
        assert_eq!(behind, (Digests::Equal, vec![], Some((5, 8))));
        let apart = compared(&[(0, &[(5, 5, 8)]), (0, &[(2, 4, 7)])]);
        assert_eq!((apart.0, apart.1), (Digests::Moving, vec![]));
        let odd = compared(&[(0, &[(1, 9, 7)]), (0, &[(2, 9, 6)])]);
        assert_eq!((odd.0, odd.1), (Digests::Differ, vec![1]));
        let first = compared(&[(0, &[(1, 9, 7)]), (0, &[(2, 9, 6)]), (0, &[(2, 9, 6)])]);
        assert_eq!((first.0, first.1), (Digests::Differ, vec![0]));
    }

    #[test]
    fn the_digests_of_all_partitions_add_up() {
        let both = compared(&[(0, &[(1, 4, 7), (5, 8, 70)]), (1, &[(2, 6, 100)])]);
        assert_eq!(both, (Digests::Equal, vec![], Some((6, 170))));
        let apart = compared(&[(0, &[(5, 8, 70)]), (1, &[(2, 4, 100)])]);
        assert_eq!(apart, (Digests::Equal, vec![], None), "nodes of two partitions have different data");
    }

    #[test]
    fn places_of_logs_that_are_apart_are_not_the_same_moment() {
        let members = [0, 1].map(member);
        let of = |engine: &str| {
            let status = |node| Ok(Status { engine: engine.to_owned(), ..status(node, &[(1, 9, 7)]) });
            let found = Compared::of(&members, &[0, 1].map(status));
            (found.digests, found.whole.map(|whole| whole.digest.sum))
        };
        assert_eq!(of("calvin"), (Digests::Equal, Some(14)));
        assert_eq!(of("no-wait"), (Digests::Equal, None));
    }

    #[test]
    fn the_lag_of_a_follower_is_what_it_has_not_of_its_primaries() {
        let of = |node, partition, role: &str, epoch, applied_epoch| {
            let role = role.to_owned();
            let status = Status { role, epoch, applied_epoch, lag: 1, ..status(node, &[]) };
            line(&Member { partition, ..member(node) }, Ok(status), false)
        };
        let mut lines = [
            of(0, 0, "primary", 90, 89),
            of(1, 1, "primary", 70, 70),
            of(2, 0, "follower", 81, 80),
            of(3, 1, "follower", 75, 74),
            of(4, 2, "follower", 9, 8),
        ];
        compare_with_primaries(&mut lines);
        assert_eq!(lines.map(|line| line.lag), [1, 1, 10, 1, 1].map(Some));
    }

    #[test]
    fn a_node_that_is_not_well_is_told_with_its_reason() {
        let ok = line(&member(1), Ok(status(1, &[])), false);
        assert_eq!((ok.state, unwell(&[ok])), (State::Ok, None));
        let lines = [
            line(&member(0), Err(Unasked::gone("connection refused")), false),
            line(&member(1), Ok(Status { not_ready: Some("no leader".into()), ..status(1, &[]) }), false),
            line(&member(2), Ok(status(3, &[])), false),
            line(&member(3), Ok(status(3, &[])), true),
            line(&member(4), Ok(status(4, &[])), false),
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
