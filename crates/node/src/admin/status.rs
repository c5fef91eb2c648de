//! The status of a node: whether it is ready, its place in the cluster, its digests.
//!
//! Nothing here asks for a transaction: polls must cost nothing, and a node that is stuck must be able to say so. All is read from what the roles report of themselves and from the links.

use ordain_archive::{Location, Standing};
use ordain_family::{Replication, TAKES_TRANSACTIONS};
use ordain_model::{DigestSpan, Micros};
use ordain_replication::configuration_service_members;
use ordain_role::NodeId;
use ordain_runtime::{PeerStatus, Reach};
use serde_json::{Value, json};

use super::metrics::{Samples, resident_bytes};
use super::{About, Observed, regions};
use crate::cluster::{Member, Membership};

/// The time that an event loop may be in one turn before the node counts as one that stands still.
const STANDS_STILL: Micros = Micros::from_millis(2000);
/// How many of the latest digests `/status` has.
const DIGESTS: usize = 24;

/// The role of this node in its partition, and the partition's leader or primary, as far as this node knows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) role: &'static str,
    pub(super) leader: Option<u16>,
    pub(super) term: Option<u64>,
}

impl Command {
    /// Reads it from what the roles report of themselves.
    pub(super) fn of(about: &About, samples: &Samples) -> Command {
        let command = Command::among_members(about, samples);
        Command { role: if behind(samples) > 0.0 { "behind" } else { command.role }, ..command }
    }

    /// Of a region's database server, which one of them leads by the word of the storage nodes, or of a storage node.
    fn in_region(place: &Membership, samples: &Samples) -> Command {
        let term = Some(samples.max("ordain_storage_ballot") as u64);
        if !place.cluster.topology().is_server(place.node) {
            return Command { role: "storage", leader: None, term };
        }
        let is_leader = samples.max("ordain_storage_is_leader") > 0.0;
        let known =
            samples.first("ordain_storage_leader").filter(|node| *node >= 0.0).map(|node| node as u16);
        Command {
            role: if is_leader { "leader" } else { "standby" },
            leader: if is_leader { Some(place.node.0) } else { known },
            term,
        }
    }

    fn among_members(about: &About, samples: &Samples) -> Command {
        let alone = about.cluster.as_ref().is_none_or(|place| place.cluster.members.len() == 1);
        let replication = about.cluster.as_ref().map_or(Replication::None, |place| place.cluster.replication);
        let own = about.node.0;
        if let Some(place) = about.cluster.as_ref().filter(|place| place.cluster.storage.is_some()) {
            return Command::in_region(place, samples);
        }
        if alone || replication == Replication::None {
            let role = if alone { "single" } else { "leader" };
            return Command { role, leader: Some(own), term: None };
        }
        if replication == Replication::Async {
            let is = |name| samples.max(name) > 0.0;
            let is_primary = is("ordain_ship_is_primary");
            // Until the configuration service knows of this node it knows no more than who led when all began.
            let is_known = is("ordain_configuration_service_has_arrived")
                && !is("ordain_configuration_service_is_fenced");
            let known = is_known.then(|| samples.max("ordain_configuration_service_primary") as u16);
            return Command {
                role: if is_primary { "primary" } else { "follower" },
                leader: if is_primary { Some(own) } else { known },
                term: Some(samples.max("ordain_configuration_service_term") as u64),
            };
        }
        let is_leader = samples.max("ordain_group_is_leader") > 0.0;
        // Below zero: none is known.
        let known = samples.first("ordain_group_leader").filter(|node| *node >= 0.0).map(|node| node as u16);
        Command {
            role: if is_leader { "leader" } else { "follower" },
            leader: if is_leader { Some(own) } else { known },
            term: Some(samples.max("ordain_group_term") as u64),
        }
    }
}

/// The obstacles between a node and its work, as far as it knows; none: it is ready.
///
/// A node is ready if it and all that it needs are there: its event loops turn, its log takes writes, what was ordered is
/// executed here, its partition has a leader, every partition has enough members for one, and of one replica every node is
/// reached.
pub(super) fn obstacles(
    about: &About,
    samples: &Samples,
    links: &[PeerStatus],
    overdue: Option<u64>,
) -> Vec<String> {
    let is_storage =
        about.cluster.as_ref().is_some_and(|place| !place.cluster.topology().is_server(place.node));
    if !samples.has(TAKES_TRANSACTIONS) && !is_storage {
        return vec!["the node has just been started".to_owned()];
    }
    let mut found = Vec::new();
    let longest = samples.max("ordain_loop_longest_turn_seconds");
    if longest * 1e6 > STANDS_STILL.0 as f64 {
        found.push(format!("an event loop has been busy with one thing for {longest:.0} s"));
    }
    if samples.max("ordain_log_full") > 0.0 {
        found.push("the disk is full, and writes are refused: free some space".to_owned());
    }
    if let Some(place) = about.cluster.as_ref().filter(|_| !is_storage) {
        let command = Command::of(about, samples);
        let is_async = place.cluster.replication == Replication::Async;
        if command.leader.is_none() {
            let partition = place.partition();
            found.push(match is_async {
                true => {
                    format!(
                        "partition {partition} has no primary that this node knows: one is being agreed on"
                    )
                }
                false => format!("partition {partition} has no leader that this node knows"),
            });
        }
        found.extend(is_async.then(|| configuration_service_is_gone(about, links)).flatten());
        found.extend(shortfalls(place, samples));
        found.extend(unreached(place, samples, links));
    }
    if is_storage && samples.max("ordain_storage_is_counted") == 0.0 {
        found.push(regions::NOT_COUNTED.to_owned());
    }
    if let Some(epoch) = overdue {
        found.push(format!("epoch {epoch} was opened a while ago and is not executed here yet"));
    }
    found
}

/// The nodes that are not reached, and without which transactions cannot be answered.
fn unreached(place: &Membership, samples: &Samples, links: &[PeerStatus]) -> Vec<String> {
    let grid = place.cluster.topology();
    let is_there = |node: NodeId| {
        links.iter().find(|link| link.node == node).is_none_or(|link| link.reach == Reach::Connected)
    };
    if place.cluster.storage.is_some() {
        return regions::obstacles(place, samples, &is_there);
    }
    let mut missing: Vec<&PeerStatus> = Vec::new();
    let mut replicas = (0..grid.replicas).map(ordain_role::ReplicaId);
    if !replicas.any(|replica| grid.replica(replica).all(is_there)) {
        missing.extend(links.iter().filter(|link| grid.replica_of(link.node) == place.replica()));
    }
    let mut found = Vec::new();
    for partition in (0..grid.layout.partitions()).map(ordain_model::PartitionId) {
        let group: Vec<NodeId> = grid.group(partition).collect();
        let away = group.iter().filter(|node| !is_there(**node)).count();
        let enough = match place.cluster.replication {
            Replication::Sync => 2 * (group.len() - away) > group.len(),
            Replication::None | Replication::Async => away < group.len(),
        };
        if !enough {
            found.push(format!(
                "partition {partition} cannot go on, as {away} of its {} nodes are not reached",
                group.len()
            ));
            missing.extend(links.iter().filter(|link| grid.partition_of(link.node) == partition));
        }
    }
    missing.retain(|link| link.reach != Reach::Connected);
    missing.sort_by_key(|link| link.node);
    missing.dedup_by_key(|link| link.node);
    found.extend(missing.into_iter().map(|link| {
        let what = match link.reach {
            Reach::Refused(reason) => format!("is refused: {reason}"),
            Reach::Connecting | Reach::Connected => "is not reached yet".to_owned(),
            Reach::Lost => "is lost".to_owned(),
        };
        format!("node {} (partition {}) {what}", link.node.0, grid.partition_of(link.node))
    }));
    found
}

/// The obstacle that too few members of the configuration service are reached to agree on a primary.
fn configuration_service_is_gone(about: &About, links: &[PeerStatus]) -> Option<String> {
    let members = configuration_service_members(&about.cluster.as_ref()?.cluster.topology());
    let is_missing =
        |node: &NodeId| links.iter().any(|link| link.node == *node && link.reach != Reach::Connected);
    let missing: Vec<NodeId> = members.iter().copied().filter(is_missing).collect();
    let list = |nodes: &[NodeId]| nodes.iter().map(|node| node.0.to_string()).collect::<Vec<_>>().join(", ");
    (2 * missing.len() > members.len()).then(|| {
        format!(
            "of the configuration service (nodes {}), which says who is primary, nodes {} are not reached, and two must be there: \
             start them",
            list(&members),
            list(&missing)
        )
    })
}

/// Tells whether a node is not a voter of its group yet: it may answer, but its partition does not count on it, so that no
/// other node should be stopped.
fn is_joining(samples: &Samples) -> bool {
    samples.has("ordain_group_is_voter") && samples.max("ordain_group_is_voter") == 0.0
}

/// Up to which epoch the others do not keep any more what a node needs; 0 if they do.
fn behind(samples: &Samples) -> f64 {
    samples.max("ordain_log_behind_epoch").max(samples.max("ordain_exchange_behind_epoch"))
}

const JOINING: &str = "this node is joining and not let in yet";

/// The parts that a node lacks.
fn shortfalls(place: &Membership, samples: &Samples) -> Vec<String> {
    let mut found = Vec::new();
    if samples.max("ordain_group_unfounded") > 0.0 {
        let who = match place.cluster.replication {
            Replication::Async => "the configuration service".to_owned(),
            Replication::None | Replication::Sync => format!("partition {}", place.partition()),
        };
        found.push(format!("the nodes of {who} have not all met yet, which they must once: start them"));
    }
    let unfounded = ["ordain_exchange_unfounded", "ordain_manager_unfounded"];
    if unfounded.into_iter().any(|name| samples.max(name) > 0.0) {
        let who = format!("replica {}", place.replica());
        found.push(format!("the nodes of {who} have not all met yet, which they must once: start them"));
    }
    found.extend(is_joining(samples).then(|| JOINING.to_owned()));
    let (lacking, behind) = (samples.max("ordain_exchange_catch_up_epoch"), behind(samples));
    if behind > 0.0 {
        found.push(format!(
            "what comes next here is not in the logs of the other nodes of its partition any more, which begin after \
             epoch {behind}: it gets a checkpoint from one of them that has a newer one"
        ));
    } else if lacking > 0.0 {
        let remedy = match place.cluster.replicas {
            1 => "and no other node has it: restore a copy of this node's data directory that is not as old",
            _ => "and is read from the other nodes of its partition",
        };
        found.push(format!(
            "what came in from other partitions up to epoch {lacking} is missing here, {remedy}"
        ));
    }
    found
}

/// The epoch that this node has opened, and the one up to which it has executed everything. With an engine that logs decisions
/// they are places of its log: the last that it knows, and the last that is installed.
pub(super) fn epochs(samples: &Samples) -> (u64, u64) {
    let epoch = samples.sum(opened_by(samples));
    // The shards know of epochs with something in them, the exchange of all.
    let of_all = samples.has("ordain_exchange_progress_epoch");
    let name = if of_all { "ordain_exchange_progress_epoch" } else { "ordain_shard_applied_epoch" };
    (epoch as u64, samples.min(name) as u64)
}

/// The metric that tells which epoch, or place of its log, a node has opened.
pub(super) fn opened_by(samples: &Samples) -> &'static str {
    if samples.has("ordain_manager_place") { "ordain_manager_place" } else { "ordain_sequencer_epoch" }
}

/// All of `/status`.
pub(super) fn status(observed: &Observed, samples: &Samples) -> Value {
    let about = &observed.about;
    let (command, links) = (Command::of(about, samples), about.links.peers());
    let obstacles = obstacles(about, samples, &links, observed.overdue(samples));
    let (epoch, applied) = epochs(samples);
    let place = about.cluster.as_ref();
    let digests = &samples.digests;
    let latest = digests.iter().rev().take(DIGESTS).map(|span| {
        json!({
            "first_epoch": span.first.0,
            "last_epoch": span.last.0,
            "digest": span.digest.to_string(),
        })
    });
    json!({
        "node": about.node.0,
        "cluster": place.map(|place| &place.cluster.id),
        "partition": place.map_or(0, |place| place.partition().0),
        "replica": place.map_or(0, |place| place.replica().0),
        "engine": about.engine.name(),
        "replication": place.map_or(Replication::None, |place| place.cluster.replication).name(),
        "role": command.role,
        "leader": command.leader,
        "term": command.term,
        "not_ready": (!obstacles.is_empty()).then(|| obstacles.join("; ")),
        "resp": about.resp.to_string(),
        "tls": about.tls.map(|tls| tls.to_string()),
        "certificates": { "renewed": about.renewals.total(), "failing": about.renewals.failing() },
        "epoch": epoch,
        "applied_epoch": applied,
        "durable_epoch": samples.max("ordain_log_durable_epoch") as u64,
        "lag": epoch.saturating_sub(applied),
        "behind_epochs": samples.max("ordain_ship_behind_epochs") as u64,
        "behind_bytes": samples.max("ordain_ship_behind_bytes") as u64,
        "checkpoint": checkpoint(samples),
        "checkpoint_store": about.archive.as_ref().map(archive),
        "started_over": about.rebuilds,
        "map_version": samples.max("ordain_shard_map_version") as u64,
        "slots": samples.sum("ordain_shard_slots") as u64,
        "members": place.map(members).unwrap_or_default(),
        "regions": super::regions::status(about, samples, super::now_ms()),
        "peers": links.iter().map(peer).collect::<Vec<_>>(),
        "digest": digests.last().map(|span| span.digest.to_string()),
        "digest_epoch": digests.last().map(|span: &DigestSpan| span.last.0),
        "digests": latest.collect::<Vec<_>>(),
        "committed": samples.committed() as u64,
        "aborted": samples.aborts().values().sum::<f64>() as u64,
        "connections": observed.mailboxes.connections().0,
        "records": samples.sum("ordain_store_records") as u64,
        "memory_bytes": resident_bytes(),
    })
}

/// The newest complete checkpoint, and how the next one goes.
fn checkpoint(samples: &Samples) -> Value {
    let sum = |name| samples.sum(name) as u64;
    json!({
        "epoch": sum("ordain_checkpoint_epoch"),
        "seconds": sum("ordain_checkpoint_seconds"),
        "kept": sum("ordain_checkpoint_kept"),
        "bytes": sum("ordain_checkpoint_bytes"),
        "saved_epoch": sum("ordain_checkpoint_saved_epoch"),
        "writing": sum("ordain_checkpoint_writing") > 0,
        "failing": sum("ordain_checkpoint_failing") > 0,
        "given_up": sum("ordain_checkpoint_given_up_total"),
    })
}

/// The store of checkpoints, and the state of uploads.
fn archive((location, standing): &(Location, Standing)) -> Value {
    let report = standing.report();
    json!({
        "url": location.to_string(),
        "epoch": report.epoch.0,
        "kept": report.kept,
        "uploading": report.uploading.map(|epoch| epoch.0),
        "uploaded": report.uploaded,
        "bytes": report.bytes,
        "failures": report.failures,
        "failing": report.failing,
    })
}

/// All nodes of the cluster, this one too.
fn members(place: &Membership) -> Vec<Value> {
    let grid = place.cluster.topology();
    let member = |member: &Member| {
        json!({
            "node": member.node.0,
            "partition": grid.partition_of(member.node).0,
            "replica": grid.replica_of(member.node).0,
            "resp": member.resp.to_string(),
            "admin": member.admin_name,
            "admin_tls": place.cluster.is_admin_in_tls(member.admin),
            "cluster": member.cluster.to_string(),
        })
    };
    place.cluster.members.iter().map(member).collect()
}

/// A link, as `/status` has it.
fn peer(link: &PeerStatus) -> Value {
    let (state, reason) = match link.reach {
        Reach::Connecting => ("connecting", None),
        Reach::Connected => ("connected", None),
        Reach::Lost => ("lost", None),
        Reach::Refused(reason) => ("refused", Some(reason.to_string())),
    };
    json!({
        "node": link.node.0,
        "address": link.address.to_string(),
        "state": state,
        "reason": reason,
        "rtt_us": link.rtt.map(|time| time.0),
        "kept_bytes": link.kept_bytes,
        "sent_bytes": link.output_bytes,
        "received_bytes": link.input_bytes,
        "reconnects": link.reconnects,
    })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use ordain_runtime::{NetStatus, Refusal};

    use super::super::PATIENCE;
    use super::*;
    use ordain_engines::registry::Engine;

    use crate::admin_client::Asker;
    use crate::cluster::{ClusterConfig, ClusterFile};

    /// Node 2 of a cluster of two partitions and two replicas.
    fn about(replicas: u16) -> About {
        about_with(replicas, "")
    }

    /// The same, with a line of the cluster's file.
    fn about_with(replicas: u16, line: &str) -> About {
        let node = |id: usize| {
            let at = |kind: usize| format!("\"127.0.0.1:{}\"", 7000 + kind * 100 + id);
            format!("[[node]]\nid = {id}\ncluster = {}\nresp = {}\nadmin = {}\n", at(0), at(1), at(2))
        };
        let nodes: String = (0..2 * usize::from(replicas)).map(node).collect();
        let head = format!("cluster = \"c\"\npartitions = 2\nreplicas = {replicas}\nthreads = 1\n{line}\n");
        let file = ClusterFile::parse(&format!("{head}{nodes}")).unwrap();
        let id = 2 * (replicas - 1);
        About {
            engine: Engine::default(),
            node: NodeId(id),
            doubts: ordain_model::Doubts::default(),
            resp: SocketAddr::from(([127, 0, 0, 1], 7102)),
            access: std::sync::Arc::default(),
            tls: None,
            admin_tls: None,
            asker: Asker { login: None, trust: None, patience: PATIENCE },
            renewals: std::sync::Arc::default(),
            diagnostics: std::sync::Arc::default(),
            run_times: Vec::new(),
            memory: std::sync::Arc::new(ordain_resp::memory::Memory::new(|| 0, (0, 1), 1)),
            cluster: Some(Membership::new(ClusterConfig::new(&file).unwrap(), id).unwrap()),
            rebuilds: 0,
            links: NetStatus::default(),
            archive: None,
        }
    }

    fn link(node: u16, reach: Reach) -> PeerStatus {
        PeerStatus {
            node: NodeId(node),
            address: SocketAddr::from(([127, 0, 0, 1], 7000 + node)),
            reach,
            rtt: Some(Micros(70)),
            input_bytes: 1,
            output_bytes: 2,
            kept_bytes: 0,
            reconnects: 1,
        }
    }

    fn samples(numbers: &[(&'static str, f64)]) -> Samples {
        Samples::of(numbers)
    }

    /// What is in the way of a node of which all is well but this.
    fn obstacles(about: &About, numbers: &[(&'static str, f64)], links: &[PeerStatus]) -> String {
        let numbers = [numbers, &[(TAKES_TRANSACTIONS, 1.0)]].concat();
        super::obstacles(about, &samples(&numbers), links, None).join("; ")
    }

    #[test]
    fn a_node_knows_who_leads_its_partition() {
        let member = about(2);
        let of = |numbers: &[(&'static str, f64)]| Command::of(&member, &samples(numbers));
        let leads = of(&[("ordain_group_is_leader", 1.0), ("ordain_group_term", 4.0)]);
        assert_eq!(leads, Command { role: "leader", leader: Some(2), term: Some(4) });
        let follows = of(&[("ordain_group_leader", 0.0), ("ordain_group_term", 5.0)]);
        assert_eq!(follows, Command { role: "follower", leader: Some(0), term: Some(5) });
        let lost = of(&[("ordain_group_leader", -1.0)]);
        assert_eq!(lost.leader, None);
        let behind = of(&[("ordain_group_leader", 0.0), ("ordain_log_behind_epoch", 7.0)]);
        assert_eq!((behind.role, behind.leader), ("behind", Some(0)));
        assert_eq!(Command::of(&about(1), &samples(&[])).role, "leader");
        let alone = About { cluster: None, ..about(1) };
        assert_eq!(Command::of(&alone, &samples(&[])).role, "single");
    }

    #[test]
    fn a_follower_knows_its_primary_once_the_configuration_service_knows_of_it() {
        let member = about_with(2, "replication = \"async\"");
        let of = |numbers: &[(&'static str, f64)]| Command::of(&member, &samples(numbers));
        let seat =
            [("ordain_configuration_service_term", 3.0), ("ordain_configuration_service_primary", 0.0)];
        let arrived = [&seat[..], &[("ordain_configuration_service_has_arrived", 1.0)]].concat();
        assert_eq!(of(&seat), Command { role: "follower", leader: None, term: Some(3) });
        assert_eq!(of(&arrived), Command { role: "follower", leader: Some(0), term: Some(3) });
        let fenced = [&arrived[..], &[("ordain_configuration_service_is_fenced", 1.0)]].concat();
        assert_eq!(of(&fenced).leader, None);
        let primary = [&arrived[..], &[("ordain_ship_is_primary", 1.0)]].concat();
        assert_eq!(of(&primary), Command { role: "primary", leader: Some(2), term: Some(3) });
    }

    #[test]
    fn a_configuration_service_of_which_two_are_gone_is_in_the_way() {
        let member = about_with(2, "replication = \"async\"");
        // The configuration service: nodes 0, 2 and 1.
        let found = |links: &[PeerStatus]| obstacles(&member, &[], links);
        let said = found(&[link(0, Reach::Lost), link(1, Reach::Lost), link(3, Reach::Connected)]);
        for words in ["partition 0 has no primary", "(nodes 0, 2, 1)", "nodes 0, 1 are not reached"] {
            assert!(said.contains(words), "'{words}' is not in: {said}");
        }
        let one = found(&[link(0, Reach::Connected), link(1, Reach::Lost), link(3, Reach::Connected)]);
        assert!(!one.contains("configuration_service"), "{one}");
        let unfounded =
            shortfalls(member.cluster.as_ref().unwrap(), &samples(&[("ordain_group_unfounded", 1.0)]));
        assert!(
            unfounded[0].starts_with("the nodes of the configuration service have not all met"),
            "{unfounded:?}"
        );
    }

    #[test]
    fn a_node_that_is_not_ready_says_what_is_in_its_way() {
        let about = about(2);
        let links = [link(0, Reach::Lost), link(1, Reach::Refused(Refusal::Secret)), link(3, Reach::Lost)];
        let found = obstacles(&about, &[("ordain_group_leader", -1.0)], &links);
        let expected = format!(
            "partition 0 has no leader that this node knows; partition 0 cannot go on, as 1 of its 2 nodes are not reached; \
             partition 1 cannot go on, as 2 of its 2 nodes are not reached; node 0 (partition 0) is lost; node 1 (partition 1) is refused: {}; node 3 (partition 1) is lost",
            Refusal::Secret
        );
        assert_eq!(found, expected);
        let well = [
            ("ordain_group_is_voter", 1.0),
            ("ordain_exchange_catch_up_epoch", 0.0),
            ("ordain_group_leader", 0.0),
        ];
        let all = [0, 1, 3].map(|node| link(node, Reach::Connected));
        assert_eq!(obstacles(&about, &well, &all), "");
        let numbers = [
            ("ordain_group_is_voter", 0.0),
            ("ordain_exchange_catch_up_epoch", 7.0),
            ("ordain_group_unfounded", 1.0),
            ("ordain_exchange_unfounded", 1.0),
            ("ordain_log_full", 1.0),
            ("ordain_loop_longest_turn_seconds", 3.2),
        ];
        let found = obstacles(&about, &numbers, &all);
        let is_behind = [("ordain_exchange_behind_epoch", 9.0), ("ordain_exchange_catch_up_epoch", 7.0)];
        let found = format!("{found}; {}", obstacles(&about, &is_behind, &all));
        for words in [
            "the nodes of partition 0 have not all met",
            "the nodes of replica 1 have not all met",
            "not let in yet",
            "up to epoch 7 is missing here",
            "from the other nodes",
            "begin after epoch 9: it gets a checkpoint",
            "the disk is full",
            "busy with one thing for 3 s",
        ] {
            assert!(found.contains(words), "'{words}' is not in: {found}");
        }
        let started = super::obstacles(&about, &samples(&well), &all, None);
        assert_eq!(started, ["the node has just been started"]);
        let well = [&well[..], &[(TAKES_TRANSACTIONS, 1.0)]].concat();
        let overdue = super::obstacles(&about, &samples(&well), &all, Some(12));
        assert_eq!(overdue, ["epoch 12 was opened a while ago and is not executed here yet"]);
    }

    #[test]
    fn a_node_of_three_replicas_is_ready_without_some_of_the_others() {
        // Node 4, of partition 0 and replica 2; its peer in its own replica is node 5.
        let (about, well) = (about(3), [("ordain_group_leader", 0.0)]);
        let of = |lost: &[u16]| {
            let reach = |node| if lost.contains(&node) { Reach::Lost } else { Reach::Connected };
            obstacles(&about, &well, &[0, 1, 2, 3, 5].map(|node| link(node, reach(node))))
        };
        assert_eq!((of(&[]), of(&[5]), of(&[1, 2])), (String::new(), String::new(), String::new()));
        assert!(
            of(&[1, 3]).contains("partition 1 cannot go on, as 2 of its 3 nodes are not reached"),
            "{}",
            of(&[1, 3])
        );
        // No replica is whole either; each node is named once.
        assert_eq!(of(&[0, 3, 5]).split("; ").count(), 3, "{}", of(&[0, 3, 5]));
    }

    #[test]
    fn a_status_names_all_members_and_links() {
        let about = about(2);
        let place = about.cluster.as_ref();
        let all = place.map(members).unwrap();
        assert_eq!(all.len(), 4);
        assert_eq!(
            (&all[3]["partition"], &all[3]["replica"], &all[3]["admin"]),
            (&json!(1), &json!(1), &json!("127.0.0.1:7203"))
        );
        let shown = peer(&link(1, Reach::Refused(Refusal::Cluster)));
        assert_eq!((&shown["address"], &shown["state"]), (&json!("127.0.0.1:7001"), &json!("refused")));
        assert_eq!((&shown["reason"], &shown["rtt_us"]), (&json!(Refusal::Cluster.to_string()), &json!(70)));
    }
}
