//! Tests of the network edge that need no socket.

use std::collections::BTreeMap;

use ordain_link::{Frame, Life, Link};
use ordain_role::NodeId;

use ordain_model::wire::{Codec, Reader};

use super::*;

const ME: Address = Address { node: NodeId(1), role: 3 };
const THERE: Address = Address { node: NodeId(2), role: 9 };
const WATCHER: u16 = 5;

/// A message without content, but for what the edge says.
#[derive(Debug, PartialEq)]
struct Msg(Option<PeerChange>);

impl From<PeerChange> for Msg {
    fn from(change: PeerChange) -> Msg {
        Msg(Some(change))
    }
}

impl Codec for Msg {
    const LEAST: usize = 0;

    fn encode(&self, _: &mut Vec<u8>) {}

    fn decode(_: &mut Reader<'_>) -> Option<Msg> {
        Some(Msg(None))
    }
}

impl Wire for Msg {}

fn edge() -> Network<Msg> {
    let config = NetConfig {
        me: ME,
        listener: std::net::TcpListener::bind("127.0.0.1:0").unwrap(),
        peers: vec![(ME.node, "127.0.0.1:1".parse().unwrap()), (THERE.node, "127.0.0.1:2".parse().unwrap())],
        cluster: String::new(),
        secret: Vec::new(),
        fingerprint: 0,
        life: Life(1),
        watchers: vec![WATCHER],
        delays: BTreeMap::new(),
        procedures: Arc::default(),
        tls: None,
        limits: NetLimits::default(),
    };
    Network::new(config).unwrap()
}

/// Lets the edge's link to its only peer meet the other side's.
fn meet(edge: &mut Network<Msg>, other: &mut Link<Parcel>, out: &mut Outbox<Msg>) {
    other.connected();
    edge.peers[0].link.connected();
    loop {
        let (mine, theirs) = (edge.peers[0].link.poll(), other.poll());
        if mine.is_none() && theirs.is_none() {
            return;
        }
        mine.map(|frame| other.receive(frame));
        if let Some(frame) = theirs {
            let packet = Packet::Link(frame.map(|_| ()));
            edge.packet(0, packet, &mut Output::default(), Now::default(), out).unwrap();
        }
    }
}

fn kept(edge: &mut Network<Msg>, role: u16, changes_seen: u64) -> bool {
    let before = edge.peers[0].link.bytes();
    let from = Address { node: ME.node, role };
    let departing = Departing { from, to: THERE, changes_seen, message: Msg(None) };
    edge.depart(departing, Now::default(), &mut Outbox::default());
    edge.peers[0].link.bytes() > before
}

#[test]
fn a_role_sends_into_a_stream_once_it_has_handled_the_news_of_it() {
    let (mut edge, mut out) = (edge(), Outbox::default());
    assert!(!kept(&mut edge, WATCHER, 0) && !kept(&mut edge, WATCHER + 1, 0), "there is no stream yet");
    for life in 1..3 {
        // News of other things: a loss.
        let lost = edge.peers[0].link.lost().unwrap();
        edge.announce(0, lost, &mut out);
        meet(&mut edge, &mut Link::new(Life(life + 10), NetLimits::default().kept), &mut out);
        let of = |state| {
            let to = Address { node: ME.node, role: WATCHER };
            (ME, to, Msg(Some(PeerChange { node: THERE.node, state })))
        };
        assert_eq!(std::mem::take(&mut out.relayed), [of(PeerState::Lost), of(PeerState::Fresh)]);
        assert!(!kept(&mut edge, WATCHER, 2 * life - 1), "it knows of the loss only");
        assert!(kept(&mut edge, WATCHER, 2 * life), "it knows of the stream");
        assert!(kept(&mut edge, WATCHER + 1, 0), "no change is sent to this one");
    }
}

#[test]
fn a_greeting_is_the_first_message_of_a_stream_and_what_a_peer_says_so_is_heeded() {
    let take = |node: NodeId, content: &[u8]| match content {
        b"again" => Greeted::Restart(format!("node {} said so", node.0)),
        b"no" => Greeted::Halt("it cannot be".to_owned()),
        _ => Greeted::Nothing,
    };
    let greeting = Greeting { content: Bytes::from_static(b"mine"), take: Box::new(take) };
    let mut edge = edge().greeting(greeting);
    let mut out = Outbox::default();
    let mut other = Link::new(Life(11), NetLimits::default().kept);
    let mut first = None;
    other.connected();
    edge.peers[0].link.connected();
    while first.is_none() {
        if let Some(frame) = edge.peers[0].link.poll()
            && let Received::Message(parcel) = other.receive(frame)
        {
            first = Some(parcel);
        }
        if let Some(frame) = other.poll() {
            let packet = Packet::Link(frame.map(|_| ()));
            edge.packet(0, packet, &mut Output::default(), Now::default(), &mut out).unwrap();
            assert!(edge.peers[0].link.is_joined() || !kept(&mut edge, WATCHER + 1, 0));
        }
    }
    let first = first.unwrap();
    assert_eq!((first.to, &first.payload[..]), (ME.role, &b"mine"[..]));
    for (sequence, words) in [(1, "theirs"), (2, "again"), (3, "no")] {
        let (mut out, payload) = (Outbox::<Msg>::default(), Bytes::from(words));
        let frame = Frame::Data { to: edge.peers[0].link.end(), sequence, received: 0, payload: () };
        let packet =
            || Packet::Data { frame: frame.clone(), from: ME.role, to: ME.role, payload: payload.clone() };
        let mut take =
            |out: &mut Outbox<Msg>| edge.packet(0, packet(), &mut Output::default(), Now::default(), out);
        let taken = take(&mut out);
        assert_eq!((taken.is_ok(), out.relayed.is_empty()), (sequence == 1, true), "{words}");
        let asked = (out.restart.take(), out.halt.take());
        let expected = [(None, None), (Some("node 2 said so"), None), (None, Some("it cannot be"))];
        let (again, halt) = expected[sequence as usize - 1];
        assert_eq!(asked, (again.map(str::to_owned), halt.map(str::to_owned)), "{words}");
        assert!(take(&mut out).is_ok() && out.is_empty(), "once");
    }
}

#[test]
fn a_message_for_a_node_that_is_not_in_the_configuration_halts() {
    let mut out = Outbox::default();
    let to = Address { node: NodeId(7), role: 1 };
    let departing = Departing { from: ME, to, changes_seen: 0, message: Msg(None) };
    edge().depart(departing, Now::default(), &mut out);
    assert!(out.halt.unwrap().contains("not in the configuration"));
}
