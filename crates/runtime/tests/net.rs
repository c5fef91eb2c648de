//! Nodes in one process that talk over real sockets, through a forwarder that cuts, stalls and damages.
//!
//! No test sleeps: each waits for what a role says over a channel, or for the status that people are shown.

#![expect(clippy::unwrap_used, reason = "a test may fail where it likes")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use std::collections::BTreeMap;

use ordain_link::{Life, Room};
use ordain_model::Micros;
use ordain_model::wire::{Codec, Reader};
use ordain_role::{Address, Bytes, Event, NodeId, Now, Outbox, PeerChange, PeerState, Role, TimerId, Wire};
use ordain_runtime::{
    LinkTls, LoopSpec, NetConfig, NetLimits, NetStatus, Network, Options, PeerStatus, Reach, Refusal,
    Running, Runtime,
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// The network edge, and the role that the tests pull the strings of.
const NET: u16 = 3;
const PUPPET: u16 = 1;
/// More than any of it takes, and less than a test run's patience.
const LONG: Duration = Duration::from_secs(30);
/// After how much silence a peer is lost: never, unless a test is about that; and then soon.
const PATIENT: Micros = Micros::from_millis(60_000);
const SOON: Micros = Micros::from_millis(500);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Msg {
    Number(u64),
    /// So many bytes of one value.
    Bulk(u8, usize),
    /// What the other side cannot read.
    Riddle,
    Peer(PeerChange),
}

impl From<PeerChange> for Msg {
    fn from(change: PeerChange) -> Msg {
        Msg::Peer(change)
    }
}

impl Codec for Msg {
    const LEAST: usize = 1;

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Msg::Number(n) => {
                out.push(0);
                out.extend(n.to_le_bytes());
            }
            Msg::Bulk(..) => {
                let bulk = self.encode_shared(out);
                out.extend(bulk);
            }
            Msg::Riddle => out.push(2),
            Msg::Peer(_) => unreachable!("nobody sends what the edge says"),
        }
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<Msg> {
        match bytes.u8()? {
            0 => bytes.u64().map(Msg::Number),
            1 => {
                let rest = bytes.take_rest();
                let byte = *rest.first()?;
                rest.iter().all(|other| *other == byte).then_some(Msg::Bulk(byte, rest.len()))
            }
            _ => None,
        }
    }
}

impl Wire for Msg {
    fn encode_shared(&self, out: &mut Vec<u8>) -> Bytes {
        match self {
            Msg::Bulk(byte, count) => {
                out.push(1);
                vec![*byte; *count].into()
            }
            _ => {
                self.encode(out);
                Bytes::new()
            }
        }
    }
}

/// Says what it hears, and sends what it is told to.
struct Puppet {
    strings: Receiver<(Address, Msg)>,
    says: Sender<(Address, Msg)>,
}

impl Role for Puppet {
    type Message = Msg;

    fn handle(&mut self, _: Now, event: Event<Msg>, out: &mut Outbox<Msg>) {
        match event {
            Event::Message { from, message } => drop(self.says.send((from, message))),
            Event::Start | Event::Timer(_) => {
                out.sends.extend(self.strings.try_iter());
                out.set_timer(TimerId(0), Micros(300));
            }
            Event::Disk(_) | Event::Work(_) | Event::Stop => {}
        }
    }

    fn name(&self) -> &'static str {
        "puppet"
    }
}

/// A node and its strings. Dropping it kills it.
struct Node {
    number: u16,
    _running: Running,
    status: NetStatus,
    pull: Sender<(Address, Msg)>,
    hears: Receiver<(Address, Msg)>,
}

fn life() -> Life {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Life(NEXT.fetch_add(1, Ordering::Relaxed))
}

fn config(number: u16, listener: TcpListener, peers: &[(u16, SocketAddr)]) -> NetConfig {
    NetConfig {
        me: Address { node: NodeId(number), role: NET },
        listener,
        peers: peers.iter().map(|(node, address)| (NodeId(*node), *address)).collect(),
        cluster: "test".into(),
        secret: b"secret".to_vec(),
        fingerprint: 7,
        life: life(),
        watchers: vec![PUPPET],
        delays: BTreeMap::new(),
        procedures: Arc::default(),
        tls: None,
        limits: NetLimits {
            kept: Room { parted: 1 << 20, open: 8 << 20 },
            lost_after: PATIENT,
            ..NetLimits::default()
        },
    }
}

/// Starts a node with its edge and a role on different loops.
fn run(config: NetConfig, role: impl Role<Message = Msg> + 'static) -> (Running, NetStatus) {
    let options = Options { node: config.me.node, network: Some(NET), ring: 4, ..Options::default() };
    let network = Network::new(config).unwrap();
    let status = network.status();
    let loops = vec![LoopSpec::new("roles").role(PUPPET, role), LoopSpec::new("net").edge(NET, network)];
    (Runtime::start(options, None, loops).unwrap(), status)
}

fn start(config: NetConfig) -> Node {
    let (pull, strings) = channel();
    let (says, hears) = channel();
    let number = config.me.node.0;
    let (running, status) = run(config, Puppet { strings, says });
    Node { number, _running: running, status, pull, hears }
}

impl Node {
    fn send(&self, to: u16, message: Msg) {
        self.pull.send((Address { node: NodeId(to), role: PUPPET }, message)).unwrap();
    }

    fn hear(&self) -> (u16, Msg) {
        let (from, message) = self.hears.recv_timeout(LONG).unwrap();
        assert_eq!(from.role, if matches!(message, Msg::Peer(_)) { NET } else { PUPPET });
        (from.node.0, message)
    }

    /// Hears of one peer's stream.
    fn hears_of(&self, peer: u16, state: PeerState) {
        let change = PeerChange { node: NodeId(peer), state };
        assert_eq!(self.hear(), (self.number, Msg::Peer(change)));
    }

    /// Waits until the status of its first peer is as it should be.
    fn shows(&self, what: impl Fn(&PeerStatus) -> bool) -> PeerStatus {
        let start = Instant::now();
        loop {
            let peers = self.status.peers();
            if let Some(peer) = peers.iter().find(|peer| what(peer)) {
                return peer.clone();
            }
            assert!(start.elapsed() < LONG, "{peers:?}");
            thread::yield_now();
        }
    }
}

/// An authority for certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// TLS with a certificate of this authority for a name, and with peers that `trusted` has certified.
    fn tls(&self, name: &str, trusted: &Authority) -> LinkTls {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let chain = vec![params.signed_by(&key, &self.0).unwrap().der().clone()];
        let key = || PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(trusted.0.der().clone()).unwrap();
        let roots = Arc::new(roots);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build().unwrap();
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key())
            .unwrap();
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key())
            .unwrap();
        LinkTls { server: Arc::new(server).into(), client: Arc::new(client).into(), names: BTreeMap::new() }
    }
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Two nodes that have met: 1 dials 2, by way of a forwarder.
fn two(change: impl Fn(&mut NetConfig)) -> (Node, Node, Forwarder) {
    let ((one, at_one), (two, at_two)) = (listen(), listen());
    let between = Forwarder::to(at_two);
    let mut a = config(1, one, &[(2, between.address)]);
    let mut b = config(2, two, &[(1, at_one)]);
    change(&mut a);
    change(&mut b);
    let (a, b) = (start(a), start(b));
    a.hears_of(2, PeerState::Fresh);
    b.hears_of(1, PeerState::Fresh);
    (a, b, between)
}

/// Forwards connections, until it is told otherwise.
struct Forwarder {
    address: SocketAddr,
    target: Arc<Mutex<SocketAddr>>,
    live: Arc<Mutex<Vec<TcpStream>>>,
    /// Nothing passes while it is true.
    stalled: Arc<(Mutex<bool>, Condvar)>,
    /// The next bytes that pass are damaged.
    damage: Arc<AtomicBool>,
}

impl Forwarder {
    fn to(target: SocketAddr) -> Forwarder {
        let (listener, address) = listen();
        let forwarder = Forwarder {
            address,
            target: Arc::new(Mutex::new(target)),
            live: Arc::default(),
            stalled: Arc::default(),
            damage: Arc::default(),
        };
        let (target, live) = (forwarder.target.clone(), forwarder.live.clone());
        let (stalled, damage) = (forwarder.stalled.clone(), forwarder.damage.clone());
        thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                let Ok(far) = TcpStream::connect(*target.lock().unwrap()) else { continue };
                let ends = [(&near, &far), (&far, &near)];
                for (from, to) in ends.map(|(a, b)| (a.try_clone().unwrap(), b.try_clone().unwrap())) {
                    let (stalled, damage) = (stalled.clone(), damage.clone());
                    thread::spawn(move || pass(from, to, &stalled, &damage));
                }
                live.lock().unwrap().extend([near, far]);
            }
        });
        forwarder
    }

    fn cut(&self) {
        for stream in self.live.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn stall(&self, stalled: bool) {
        *self.stalled.0.lock().unwrap() = stalled;
        self.stalled.1.notify_all();
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, stalled: &(Mutex<bool>, Condvar), damage: &AtomicBool) {
    let mut buffer = [0; 16 << 10];
    while let Ok(count) = from.read(&mut buffer)
        && count > 0
    {
        drop(stalled.1.wait_while(stalled.0.lock().unwrap(), |stalled| *stalled).unwrap());
        if damage.swap(false, Ordering::Relaxed) {
            buffer[count / 2] ^= 0x10;
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

fn numbers(from: u16, range: std::ops::Range<u64>) -> impl Iterator<Item = (u16, Msg)> {
    range.map(move |n| (from, Msg::Number(n)))
}

#[test]
fn three_nodes_meet_and_hear_each_other_in_order() {
    let places: Vec<(TcpListener, SocketAddr)> = (0..3).map(|_| listen()).collect();
    let all: Vec<(u16, SocketAddr)> = (0..).zip(places.iter().map(|(_, address)| *address)).collect();
    let nodes: Vec<Node> =
        (0..).zip(places).map(|(i, (listener, _))| start(config(i, listener, &all))).collect();
    for node in &nodes {
        let mut met: Vec<(u16, Msg)> = (0..2).map(|_| node.hear()).collect();
        met.sort_by_key(|(_, message)| format!("{message:?}"));
        let fresh =
            |peer| (node.number, Msg::Peer(PeerChange { node: NodeId(peer), state: PeerState::Fresh }));
        assert_eq!(met, (0..3).filter(|peer| *peer != node.number).map(fresh).collect::<Vec<_>>());
    }
    for n in 0..500 {
        for from in &nodes {
            nodes
                .iter()
                .filter(|to| to.number != from.number)
                .for_each(|to| from.send(to.number, Msg::Number(n)));
        }
    }
    for node in &nodes {
        let mut next = [0; 3];
        for _ in 0..1_000 {
            let (from, message) = node.hear();
            assert_eq!(message, Msg::Number(next[usize::from(from)]));
            next[usize::from(from)] += 1;
        }
        let shown =
            node.shows(|peer| peer.rtt.is_some() && peer.input_bytes > 10_000 && peer.kept_bytes == 0);
        assert_eq!((shown.reach, shown.reconnects), (Reach::Connected, 0));
    }
}

#[test]
fn connections_that_break_or_damage_what_they_carry_lose_and_double_nothing() {
    let (a, b, between) = two(|_| ());
    for round in 0..12 {
        let range = round * 300..(round + 1) * 300;
        for n in range.clone() {
            a.send(2, Msg::Number(n));
            b.send(1, Msg::Number(n));
            match (round % 3, n % 300) {
                (1, 100 | 200) => between.cut(),
                (2, 150) => between.damage.store(true, Ordering::Relaxed),
                _ => {}
            }
        }
        for (to_b, to_a) in numbers(1, range.clone()).zip(numbers(2, range)) {
            assert_eq!((b.hear(), a.hear()), (to_b, to_a));
        }
    }
    assert!(a.shows(|peer| peer.reconnects > 0).reconnects <= 12);
}

#[test]
fn a_peer_that_falls_silent_is_lost_and_comes_back_with_everything() {
    let (a, b, between) = two(|config| config.limits.lost_after = SOON);
    between.stall(true);
    a.send(2, Msg::Number(0));
    a.hears_of(2, PeerState::Lost);
    b.hears_of(1, PeerState::Lost);
    a.shows(|peer| peer.reach == Reach::Lost);
    a.send(2, Msg::Number(1));
    between.stall(false);
    a.hears_of(2, PeerState::Back);
    b.hears_of(1, PeerState::Back);
    assert_eq!([b.hear(), b.hear()], [(1, Msg::Number(0)), (1, Msg::Number(1))]);
}

#[test]
fn a_peer_that_was_never_there_is_lost_until_it_is() {
    let ((one, at_one), (two, at_two)) = (listen(), listen());
    drop(two);
    let mut alone = config(1, one, &[(2, at_two)]);
    alone.limits.lost_after = SOON;
    let a = start(alone);
    a.hears_of(2, PeerState::Lost);
    let b = start(config(2, TcpListener::bind(at_two).unwrap(), &[(1, at_one)]));
    a.hears_of(2, PeerState::Fresh);
    b.hears_of(1, PeerState::Fresh);
}

type Spoil = fn(&mut NetConfig);

#[test]
fn nodes_that_do_not_belong_together_say_why_and_do_not_talk() {
    let cases: [(Spoil, Refusal); 4] = [
        (|config| config.secret = b"guess".to_vec(), Refusal::Secret),
        (|config| config.cluster.push('x'), Refusal::Cluster),
        (|config| config.fingerprint += 1, Refusal::Fingerprint),
        (|config| config.me.node = NodeId(4), Refusal::Node),
    ];
    for (spoil, reason) in cases {
        let ((one, at_one), (two, at_two)) = (listen(), listen());
        let mut spoilt = config(2, two, &[(1, at_one)]);
        spoil(&mut spoilt);
        let (a, b) = (start(config(1, one, &[(2, at_two)])), start(spoilt));
        for node in [&a, &b] {
            assert_eq!(node.shows(|peer| peer.reach == Reach::Refused(reason)).rtt, None);
        }
        assert_eq!(a.hears.try_iter().chain(b.hears.try_iter()).count(), 0);
    }
}

#[test]
fn a_peer_of_another_version_is_refused_by_either_side() {
    // As the first bytes of every version are: the magic, the version, and a message of one byte.
    let newer = *b"ORDN\x63\0\x01\x01\0";
    let ((one, at_one), (two, at_two)) = (listen(), listen());
    let a = start(config(1, one, &[(2, at_two)]));
    let (mut dialled, _) = two.accept().unwrap();
    dialled.write_all(&newer).unwrap();
    a.shows(|peer| peer.reach == Reach::Refused(Refusal::Version));
    let mut dialler = TcpStream::connect(at_one).unwrap();
    dialler.write_all(&newer).unwrap();
    let mut answer = Vec::new();
    dialler.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, [&b"ORDN\x19\0\x03\x01"[..], &[Refusal::Version as u8]].concat());
}

#[test]
fn garbage_and_idle_strangers_do_no_harm() {
    let ((one, at_one), (two, at_two)) = (listen(), listen());
    let b = start(config(2, two, &[(1, at_one)]));
    let mut garbage = TcpStream::connect(at_two).unwrap();
    // It may be cut off while it is still talking.
    let _ = garbage.write_all(&[0xff; 100_000]);
    let _ = garbage.read_to_end(&mut Vec::new());
    let mut cut_short = TcpStream::connect(at_two).unwrap();
    cut_short.write_all(b"ORDN\x02\0\x01\xff").unwrap();
    let began = Instant::now();
    let mut oldest = TcpStream::connect(at_two).unwrap();
    let idle: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(at_two).unwrap()).collect();
    // There is no room for so many, and they need not run out of time for it: that would take two seconds.
    assert_eq!(oldest.read(&mut [0]).unwrap_or(0), 0);
    assert!(began.elapsed() < Duration::from_secs(2));
    let a = start(config(1, one, &[(2, at_two)]));
    a.hears_of(2, PeerState::Fresh);
    b.hears_of(1, PeerState::Fresh);
    a.send(2, Msg::Number(5));
    assert_eq!(b.hear(), (1, Msg::Number(5)));
    // Those that say nothing are sent away in time.
    for mut stream in idle.into_iter().chain([cut_short]) {
        stream.set_read_timeout(Some(LONG)).unwrap();
        assert!(!stream.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    }
}

#[test]
fn a_restart_of_one_side_begins_a_fresh_stream_for_both() {
    let ((one, at_one), (two, at_two)) = (listen(), listen());
    let a = start(config(1, one, &[(2, at_two)]));
    let mut b = start(config(2, two, &[(1, at_one)]));
    for round in 0..3 {
        a.hears_of(2, PeerState::Fresh);
        b.hears_of(1, PeerState::Fresh);
        a.send(2, Msg::Number(round));
        assert_eq!(b.hear(), (1, Msg::Number(round)));
        b.send(1, Msg::Number(round));
        assert_eq!(a.hear(), (2, Msg::Number(round)));
        drop(b);
        a.shows(|peer| peer.reach == Reach::Connecting);
        // Nobody will have it.
        a.send(2, Msg::Number(99));
        a.shows(|peer| peer.kept_bytes > 0);
        b = start(config(2, TcpListener::bind(at_two).unwrap(), &[(1, at_one)]));
    }
}

#[test]
fn more_than_there_is_room_for_begins_a_fresh_stream_for_both() {
    let (a, b, between) = two(|config| config.limits.kept = Room { parted: 800_000, open: 800_000 });
    between.stall(true);
    for _ in 0..8 {
        a.send(2, Msg::Bulk(1, 90_000));
    }
    a.shows(|peer| peer.kept_bytes > 700_000);
    a.send(2, Msg::Bulk(1, 90_000));
    a.shows(|peer| peer.kept_bytes == 0);
    between.stall(false);
    a.hears_of(2, PeerState::Fresh);
    a.send(2, Msg::Bulk(2, 190_000));
    // What was on its way when the stream ended arrives before the news or not at all.
    let mut heard = b.hear();
    for _ in 0..8 {
        if heard == (1, Msg::Bulk(1, 90_000)) {
            heard = b.hear();
        }
    }
    assert_eq!(heard, (2, Msg::Peer(PeerChange { node: NodeId(1), state: PeerState::Fresh })));
    assert_eq!(b.hear(), (1, Msg::Bulk(2, 190_000)));
}

#[test]
fn a_peer_that_takes_its_time_gets_all_that_there_is() {
    let (a, b, between) = two(|_| ());
    between.stall(true);
    for _ in 0..50 {
        a.send(2, Msg::Bulk(1, 90_000));
    }
    // Four times what would be kept for it if it were away.
    a.shows(|peer| peer.kept_bytes > 4_000_000);
    between.stall(false);
    for _ in 0..50 {
        assert_eq!(b.hear(), (1, Msg::Bulk(1, 90_000)));
    }
}

#[test]
fn a_message_that_cannot_be_read_is_not_taken_for_received() {
    let (a, b, _between) = two(|_| ());
    a.send(2, Msg::Number(0));
    assert_eq!(b.hear(), (1, Msg::Number(0)));
    a.send(2, Msg::Riddle);
    b.shows(|peer| peer.reach == Reach::Refused(Refusal::Message));
    a.shows(|peer| peer.kept_bytes > 0);
}

#[test]
fn what_leaves_is_held_back_as_long_as_was_asked_and_keeps_its_order() {
    const DELAY: Micros = Micros::from_millis(40);
    let (a, b, _between) = two(|config| config.delays = (0..4).map(|node| (NodeId(node), DELAY)).collect());
    for n in 0..3 {
        let start = Instant::now();
        a.send(2, Msg::Number(n));
        a.send(2, Msg::Number(n + 100));
        assert_eq!([b.hear(), b.hear()], [(1, Msg::Number(n)), (1, Msg::Number(n + 100))]);
        assert!(start.elapsed() >= Duration::from_micros(DELAY.0));
    }
    assert!(a.shows(|peer| peer.rtt.is_some()).rtt.unwrap() >= Micros(2 * DELAY.0));
}

/// Sends numbers to node 2 without end, from 0 on whenever it hears of a fresh stream.
struct Flood(u64);

impl Role for Flood {
    type Message = Msg;

    fn handle(&mut self, _: Now, event: Event<Msg>, out: &mut Outbox<Msg>) {
        match event {
            Event::Message { message: Msg::Peer(PeerChange { state: PeerState::Fresh, .. }), .. } => {
                self.0 = 0
            }
            Event::Start | Event::Timer(_) => {
                for _ in 0..20 {
                    out.send(Address { node: NodeId(2), role: PUPPET }, Msg::Number(self.0));
                    self.0 += 1;
                }
                out.set_timer(TimerId(0), Micros(100));
            }
            _ => {}
        }
    }

    fn name(&self) -> &'static str {
        "flood"
    }
}

#[test]
fn nothing_of_a_sender_that_has_not_heard_of_the_fresh_stream_arrives_in_it() {
    let ((one, at_one), (two, at_two)) = (listen(), listen());
    drop(two);
    let _a = run(config(1, one, &[(2, at_two)]), Flood(0));
    for _ in 0..10 {
        let b = start(config(2, TcpListener::bind(at_two).unwrap(), &[(1, at_one)]));
        b.hears_of(1, PeerState::Fresh);
        for expected in numbers(1, 0..200) {
            assert_eq!(b.hear(), expected);
        }
    }
}

#[test]
fn in_tls_everything_arrives_in_order_across_cuts() {
    let authority = Authority::new();
    let (a, b, between) = two(|config| config.tls = Some(authority.tls("127.0.0.1", &authority)));
    const BULK: usize = 600 << 10;
    for round in 0..3 {
        for i in 0..100 {
            a.send(2, Msg::Number(round * 100 + i));
            b.send(1, Msg::Number(round * 100 + i));
        }
        // More than TLS takes at once, so that writes are cut short.
        a.send(2, Msg::Bulk(7, BULK));
        if round == 1 {
            between.cut();
        }
        for expected in numbers(1, round * 100..(round + 1) * 100) {
            assert_eq!(b.hear(), expected);
        }
        assert_eq!(b.hear(), (1, Msg::Bulk(7, BULK)));
        for expected in numbers(2, round * 100..(round + 1) * 100) {
            assert_eq!(a.hear(), expected);
        }
    }
}

#[test]
fn a_certificate_of_another_authority_or_for_another_name_is_refused() {
    let (ours, other) = (Authority::new(), Authority::new());
    let good = || Some(ours.tls("127.0.0.1", &ours));
    for (dialler, acceptor) in [
        // The acceptor does not know the dialler's authority.
        (Some(other.tls("127.0.0.1", &ours)), good()),
        // The dialler does not know the acceptor's.
        (good(), Some(other.tls("127.0.0.1", &ours))),
        (good(), Some(ours.tls("elsewhere.example", &ours))),
    ] {
        let ((one, at_one), (two, at_two)) = (listen(), listen());
        let a = start(NetConfig { tls: dialler, ..config(1, one, &[(2, at_two)]) });
        let b = start(NetConfig { tls: acceptor, ..config(2, two, &[(1, at_one)]) });
        a.shows(|peer| peer.reach == Reach::Refused(Refusal::Tls));
        assert!(b.hears.try_recv().is_err(), "nobody was believed");
    }
}
