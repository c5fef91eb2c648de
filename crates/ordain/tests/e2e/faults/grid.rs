//! The nodes of a cluster as processes that can be killed, frozen and started again, and the network between them.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use ordain_model::Layout;
use rustix::process::Signal;
use serde_json::Value;

use super::wires::Wires;
use crate::support::{Client, DEADLINE, Process, Reply, clean, http, ordain, ports, run, try_http, until};

/// A cluster of processes.
pub struct Grid {
    dir: tempfile::TempDir,
    pub partitions: usize,
    pub replicas: usize,
    nodes: Vec<Node>,
    /// What its nodes have in their environment.
    env: Vec<(&'static str, &'static str)>,
    /// Where each node has a network of its own.
    net: Option<Net>,
    /// Where the links between nodes are the test's.
    wires: Option<Wires>,
}

/// The ways between the nodes of a cluster, and what its processes have in their environment.
#[derive(Default)]
struct Ways {
    net: Option<Net>,
    wires: Option<Wires>,
    env: Vec<(&'static str, &'static str)>,
}

/// Three addresses on loopback for each of so many nodes.
fn loopback(nodes: usize) -> Vec<SocketAddr> {
    let count = 3 * nodes as u16;
    let first = ports(count);
    (first..first + count).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect()
}

fn config_in(dir: &Path, node: usize) -> PathBuf {
    dir.join(format!("cluster-{node}.toml"))
}

struct Node {
    process: Option<Process>,
    resp: SocketAddr,
    admin: SocketAddr,
}

impl Grid {
    /// A cluster on loopback; `settings` are more lines of its file.
    pub fn start(partitions: usize, replicas: usize, settings: &str) -> Grid {
        Grid::start_with_env(partitions, replicas, settings, &[])
    }

    /// A cluster on loopback whose links are the test's to hold, lose and end.
    pub fn wired(partitions: usize, replicas: usize, settings: &str) -> Grid {
        let addresses = loopback(partitions * replicas);
        let nodes: Vec<SocketAddr> = addresses.chunks(3).map(|at| at[0]).collect();
        let wires = Some(Wires::between(&nodes));
        Grid::with((partitions, replicas), settings, &addresses, Ways { wires, ..Ways::default() })
    }

    /// A cluster on loopback whose nodes have something in their environment.
    pub fn start_with_env(
        partitions: usize,
        replicas: usize,
        settings: &str,
        env: &[(&'static str, &'static str)],
    ) -> Grid {
        let addresses = loopback(partitions * replicas);
        Grid::with(
            (partitions, replicas),
            settings,
            &addresses,
            Ways { env: env.to_vec(), ..Ways::default() },
        )
    }

    /// A cluster each of whose nodes is on a machine of its own, as far as the network can tell.
    ///
    /// # Errors
    /// Why this machine cannot do that.
    pub fn apart(partitions: usize, replicas: usize, settings: &str) -> Result<Grid, String> {
        let nodes = partitions * replicas;
        let net = Net::make(nodes)?;
        let addresses = (0..nodes).flat_map(|node| [7000, 7001, 7002].map(|port| net.address(node, port)));
        let addresses: Vec<SocketAddr> = addresses.collect();
        let settings = format!("insecure = true\n{settings}");
        Ok(Grid::with(
            (partitions, replicas),
            &settings,
            &addresses,
            Ways { net: Some(net), ..Ways::default() },
        ))
    }

    /// A cluster whose links can be cut: its nodes are on machines of their own where this machine allows for that, else on
    /// loopback with proxies between them.
    pub fn cuttable(partitions: usize, replicas: usize, settings: &str) -> Grid {
        Grid::apart(partitions, replicas, settings)
            .unwrap_or_else(|_| Grid::wired(partitions, replicas, settings))
    }

    fn with(
        (partitions, replicas): (usize, usize),
        settings: &str,
        addresses: &[SocketAddr],
        Ways { net, wires, env }: Ways,
    ) -> Grid {
        let dir = tempfile::tempdir().unwrap();
        let head = format!(
            "cluster = \"faults\"\nsecret = \"0123456789abcdef0123456789abcdef\"\npartitions = {partitions}\n\
             replicas = {replicas}\nthreads = 1\n{settings}\n"
        );
        let node = |at: &[SocketAddr]| Node { process: None, resp: at[1], admin: at[2] };
        let nodes: Vec<Node> = addresses.chunks(3).map(node).collect();
        for me in 0..nodes.len() {
            let mut text = head.clone();
            for (id, at) in addresses.chunks(3).enumerate() {
                let data = dir.path().join(format!("node-{id}"));
                let cluster = wires.as_ref().and_then(|wires| wires.address(id, me)).unwrap_or(at[0]);
                text += &format!(
                    "\n[[node]]\nid = {id}\ncluster = \"{cluster}\"\nresp = \"{}\"\nadmin = \"{}\"\ndata-dir = {:?}\n",
                    at[1],
                    at[2],
                    data.to_str().unwrap()
                );
            }
            fs::write(config_in(dir.path(), me), text).unwrap();
        }
        let mut grid = Grid { dir, partitions, replicas, nodes, env, net, wires };
        (0..grid.nodes.len()).for_each(|id| grid.launch(id));
        (0..grid.nodes.len()).for_each(|id| grid.await_line(id));
        grid.await_ready();
        grid
    }

    /// The cluster's file, as the first node has it.
    pub fn config(&self) -> PathBuf {
        config_in(self.dir.path(), 0)
    }

    /// Starts a node that is down, and waits for nothing.
    pub fn launch(&mut self, id: usize) {
        self.nodes[id].process = Some(self.launch_apart(id));
    }

    /// Starts a node that is down, and leaves it to the caller to look after the process.
    pub fn launch_apart(&self, id: usize) -> Process {
        self.launch_with(id, &[])
    }

    /// Kills a node, takes its data away, and has an empty one join in its place; waits until it takes connections.
    #[track_caller]
    pub fn replace(&mut self, id: usize) {
        self.empty(id);
        self.nodes[id].process = Some(self.launch_with(id, &["--join"]));
        self.await_line(id);
    }

    fn launch_with(&self, id: usize, more: &[&str]) -> Process {
        let config = config_in(self.dir.path(), id);
        let number = id.to_string();
        let words = [&["serve", "--config", config.to_str().unwrap(), "--node", &number], more].concat();
        let mut command = match &self.net {
            None => ordain(words),
            Some(net) => {
                let within =
                    ["netns", "exec", &net.space(id), env!("CARGO_BIN_EXE_ordain")].map(str::to_owned);
                clean(
                    Command::new("ip"),
                    within.into_iter().chain(words.iter().map(|word| (*word).to_owned())),
                )
            }
        };
        command.envs(self.env.iter().copied());
        Process::spawn(command)
    }

    /// Whether the process of a node has ended by itself.
    pub fn has_ended(&self, id: usize) -> bool {
        self.process(id).has_ended()
    }

    /// Where a node keeps its data.
    pub fn directory(&self, id: usize) -> PathBuf {
        self.dir.path().join(format!("node-{id}"))
    }

    /// Waits until a node takes connections, which one that is rebuilt does once more.
    #[track_caller]
    pub fn await_line(&self, id: usize) {
        let process = self.process(id);
        match process.line_within(DEADLINE) {
            Ok(line) => assert!(line.ends_with(&format!("node={id}")), "{line}"),
            Err(_) => panic!("node {id} does not get ready; stderr:\n{}", process.stderr()),
        }
    }

    /// Waits until every node answers transactions over all partitions.
    #[track_caller]
    pub fn await_ready(&self) {
        for node in self.nodes.iter().filter(|node| node.process.is_some()) {
            until("every node is ready", || {
                try_http(node.admin, "/readyz").is_ok_and(|answer| answer.0 == 200)
            });
        }
    }

    fn process(&self, id: usize) -> &Process {
        self.nodes[id].process.as_ref().unwrap_or_else(|| panic!("node {id} is down"))
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The files in a node's directory.
    pub fn files(&self, id: usize) -> BTreeSet<String> {
        let entries = fs::read_dir(self.dir.path().join(format!("node-{id}"))).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Where clients connect.
    pub fn doors(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.resp).collect()
    }

    pub fn client(&self, id: usize) -> Client {
        Client::connect(self.nodes[id].resp).unwrap()
    }

    /// Moves slots to a partition, so many at a time, as somebody would who knows this node; it goes on if that one is killed.
    pub fn relocate(&self, by: usize, (slots, step): (&str, usize), to: usize) -> Process {
        let admin = self.nodes[by].admin.to_string();
        let (to, step) = (to.to_string(), step.to_string());
        Process::spawn(ordain([
            "cluster", "move", "--admin", &admin, "--slots", slots, "--to", &to, "--step", &step,
        ]))
    }

    /// What a node says of itself.
    pub fn status(&self, id: usize) -> Value {
        serde_json::from_str(&http(self.nodes[id].admin, "/status").2).unwrap()
    }

    /// What stands between a node and its work, as it says itself; nothing if it is not there.
    pub fn obstacle(&self, id: usize) -> String {
        try_http(self.nodes[id].admin, "/readyz").map(|(_, _, body)| body).unwrap_or_default()
    }

    /// What a node says of itself, if it is there: it may be being rebuilt.
    pub fn try_status(&self, id: usize) -> Option<Value> {
        serde_json::from_str(&try_http(self.nodes[id].admin, "/status").ok()?.2).ok()
    }

    /// Whether a node says that it is primary of its partition.
    pub fn is_primary(&self, id: usize) -> bool {
        self.try_status(id).is_some_and(|status| status["role"] == "primary")
    }

    /// The node that leads a partition, or is its primary.
    pub fn leader(&self, partition: usize) -> usize {
        self.leading(partition).0
    }

    /// The same, and what that node said when it said so: it may be rebuilt a moment later.
    fn leading(&self, partition: usize) -> (usize, Value) {
        let mut found = None;
        until("a partition has a leader", || {
            let members = (0..self.replicas).map(|replica| replica * self.partitions + partition);
            let up = members.filter(|id| self.nodes[*id].process.is_some());
            let is_first = |status: &Value| status["role"] == "leader" || status["role"] == "primary";
            found = up.filter_map(|id| Some((id, self.try_status(id)?))).find(|(_, status)| is_first(status));
            found.is_some()
        });
        found.unwrap()
    }

    /// The terms of all partitions, where primaries have terms. A machine that stands still for most of a second has its
    /// primaries given up.
    pub fn terms(&self) -> Vec<Option<u64>> {
        (0..self.partitions).map(|partition| self.leading(partition).1["term"].as_u64()).collect()
    }

    /// Waits until one node takes another for lost.
    pub fn await_loss(&self, of: usize, by: usize) {
        until("a node that is not heard of is lost", || {
            let status = self.try_status(by).unwrap_or_default();
            let mut peers = status["peers"].as_array().into_iter().flatten();
            peers.any(|peer| peer["node"] == of && peer["state"] == "lost")
        });
    }

    /// A key of a partition.
    pub fn key_in(&self, partition: usize, name: &str) -> String {
        let layout = Layout::even(self.partitions, 1).unwrap();
        let is_there = |key: &String| usize::from(layout.region_of(key.as_bytes()).0) == partition;
        (0..).map(|i| format!("{name}:{i}")).find(is_there).unwrap()
    }

    /// kill -9.
    pub fn kill(&mut self, id: usize) {
        self.nodes[id].process.take().unwrap_or_else(|| panic!("node {id} is down already")).kill();
    }

    /// Starts a node that was killed, and waits until it takes connections.
    #[track_caller]
    pub fn restart(&mut self, id: usize) {
        self.launch(id);
        self.await_line(id);
    }

    pub fn signal(&self, id: usize, signal: Signal) {
        self.process(id).signal(signal);
    }

    /// What crosses from one node to another does not arrive from now on, and may once the link heals: TCP sends it again.
    pub fn cut(&self, from: usize, to: usize) {
        match &self.wires {
            Some(wires) => wires.hold(from, to),
            None => self.net.as_ref().expect("nodes that are apart").cut(from, to),
        }
    }

    /// What crosses from one node to another arrives again.
    pub fn heal(&self, from: usize, to: usize) {
        match &self.wires {
            Some(wires) => wires.open(from, to),
            None => self.net.as_ref().expect("nodes that are apart").heal(from, to),
        }
    }

    /// The links between its nodes, of a cluster that is wired.
    pub fn wires(&self) -> &Wires {
        self.wires.as_ref().expect("a cluster that is wired")
    }

    /// Kills a node, and takes its data away.
    pub fn empty(&mut self, id: usize) {
        self.kill(id);
        fs::remove_dir_all(self.directory(id)).unwrap();
    }

    /// What a node has written into its log.
    pub fn log_of(&self, id: usize) -> String {
        self.process(id).stderr()
    }

    /// Whether a node has ended a stream because more was under way than is kept for another.
    pub fn has_given_up(&self, id: usize) -> bool {
        self.process(id).stderr().contains("the stream is given up")
    }

    /// Waits until every node has the same digest, that of all that was acknowledged.
    #[track_caller]
    pub fn await_equal_digests(&self) -> String {
        self.await_same_digests(self.len())
    }

    /// The same of the nodes that are up, so many.
    #[track_caller]
    pub fn await_same_digests(&self, up: usize) -> String {
        let mut digests = Vec::new();
        until("the digests are equal on all nodes", || {
            digests = (0..self.len()).filter_map(|id| self.digest(id)).collect();
            digests.len() == up && digests.iter().all(|digest| *digest == digests[0])
        });
        digests.swap_remove(0)
    }

    /// Waits until `ordain cluster status` has found equal digests on the members of each partition.
    #[track_caller]
    pub fn await_equal_members(&self) {
        let file = self.dir.path().join("status.json");
        let admin = self.nodes[0].admin.to_string();
        until("the members of each partition have equal digests", || {
            run(ordain(["cluster", "status", "--admin", &admin, "--json", file.to_str().unwrap()]));
            let found: Value =
                serde_json::from_slice(&fs::read(&file).unwrap_or_default()).unwrap_or_default();
            assert_ne!(found["digests"], "differ", "{found}");
            found["digests"] == "equal" && found["ok"] == true
        });
    }

    /// What a node has, if it can tell.
    fn digest(&self, id: usize) -> Option<String> {
        let mut client = Client::connect(self.nodes[id].resp).ok()?;
        client.send(b"DEBUG DIGEST\r\n").ok()?;
        match client.receive().ok()? {
            Reply::Status(digest) => String::from_utf8(digest).ok(),
            _ => None,
        }
    }

    /// Asks all nodes to stop and holds them to a clean end.
    #[track_caller]
    pub fn stop(mut self) {
        for node in &self.nodes {
            node.process.iter().for_each(|process| process.signal(Signal::TERM));
        }
        for (id, node) in self.nodes.iter_mut().enumerate() {
            if let Some(process) = node.process.take() {
                let ended = process.wait();
                assert_eq!(ended.code, Some(0), "node {id}: {ended:?}");
                assert!(!ended.stderr.contains("not everything is finished"), "node {id}: {ended:?}");
            }
        }
    }
}

/// A network namespace for each node, and a bridge between them.
struct Net {
    /// What all names begin with; a name of an interface has at most 15 characters.
    prefix: String,
    subnet: String,
    nodes: usize,
}

impl Net {
    fn make(nodes: usize) -> Result<Net, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if !Path::new("/proc/self/ns/net").exists() {
            return Err("this system has no network namespaces".to_owned());
        }
        let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let subnet = format!("10.{}.{}", 200 + count % 50, process % 250);
        let net = Net { prefix: format!("o{}{count}", process % 1_000_000), subnet, nodes };
        let bridge = net.bridge();
        ip(&["link", "add", &bridge, "type", "bridge"])?;
        ip(&["addr", "add", &format!("{}.254/24", net.subnet), "dev", &bridge])?;
        ip(&["link", "set", &bridge, "up"])?;
        for node in 0..nodes {
            let (space, here, there) = (net.space(node), net.cable(node), format!("{}t", net.cable(node)));
            ip(&["netns", "add", &space])?;
            ip(&["link", "add", &here, "type", "veth", "peer", "name", &there])?;
            ip(&["link", "set", &there, "netns", &space])?;
            ip(&["link", "set", &here, "primary", &bridge, "up"])?;
            let address = format!("{}/24", net.address(node, 0).ip());
            ip(&["-n", &space, "link", "set", &there, "name", "eth0"])?;
            ip(&["-n", &space, "addr", "add", &address, "dev", "eth0"])?;
            ip(&["-n", &space, "link", "set", "eth0", "up"])?;
            ip(&["-n", &space, "link", "set", "lo", "up"])?;
        }
        Ok(net)
    }

    fn bridge(&self) -> String {
        format!("{}b", self.prefix)
    }

    fn space(&self, node: usize) -> String {
        format!("{}n{node}", self.prefix)
    }

    fn cable(&self, node: usize) -> String {
        format!("{}v{node}", self.prefix)
    }

    fn address(&self, node: usize, port: u16) -> SocketAddr {
        format!("{}.{}:{port}", self.subnet, node + 1).parse().unwrap()
    }

    /// Has one node send what is for the other to a machine that is not there: all of it is lost, silently, and what
    /// comes the other way is not.
    fn cut(&self, from: usize, to: usize) {
        let (space, to) = (self.space(from), self.address(to, 0).ip().to_string());
        let nobody = "02:00:00:00:00:01";
        ip(&["-n", &space, "neigh", "replace", &to, "lladdr", nobody, "nud", "permanent", "dev", "eth0"])
            .unwrap();
    }

    fn heal(&self, from: usize, to: usize) {
        let (space, to) = (self.space(from), self.address(to, 0).ip().to_string());
        ip(&["-n", &space, "neigh", "del", &to, "dev", "eth0"]).unwrap();
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // What was not made cannot be removed; a namespace takes its end of the cable along.
        for node in 0..self.nodes {
            let _ = ip(&["netns", "del", &self.space(node)]);
            let _ = ip(&["link", "del", &self.cable(node)]);
        }
        let _ = ip(&["link", "del", &self.bridge()]);
    }
}

fn ip(words: &[&str]) -> Result<(), String> {
    let ran = Command::new("ip").args(words).output().map_err(|error| format!("cannot run ip: {error}"))?;
    let said = String::from_utf8_lossy(&ran.stderr);
    if ran.status.success() { Ok(()) } else { Err(format!("ip {}: {}", words.join(" "), said.trim())) }
}
