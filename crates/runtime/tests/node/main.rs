//! Whole nodes on real threads: what a driver promises its roles, and what a node promises its operator.
//!
//! No test sleeps: each waits for what a role says over a channel, or for the node to end.

#![expect(clippy::unwrap_used, reason = "a test may fail where it likes")]

mod disk;
mod edges;
mod ends;
mod messages;

use std::fmt::Debug;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry};
use ordain_model::Micros;
use ordain_role::{
    Address, Bytes, Directory, DiskDone, DiskError, DiskOp, DiskRequest, Event, NodeId, Now, Outbox, Rebuild,
    Role, TimerId, Work, WorkDone,
};
use ordain_runtime::{
    Disk, Edge, FsDirectory, LoopSpec, Options, Runtime, StartError, Stopped, Tokens, Turn,
};

/// The messages of these tests: a number and what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Msg {
    Ping(u64),
    Pong(u64),
}

pub(crate) fn at(role: u16) -> Address {
    Address { node: NodeId(0), role }
}

pub(crate) fn options() -> Options {
    // Tiny rings, so that the way around a full one is taken all the time.
    Options { ring: 4, ..Options::default() }
}

/// A role that is a closure.
pub(crate) struct Acts<F>(pub(crate) F);

impl<F: FnMut(Now, Event<Msg>, &mut Outbox<Msg>) + Send> Role for Acts<F> {
    type Message = Msg;

    fn handle(&mut self, now: Now, event: Event<Msg>, out: &mut Outbox<Msg>) {
        (self.0)(now, event, out);
    }

    fn name(&self) -> &'static str {
        "acts"
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        report("acts_closures", 1.0);
    }
}

pub(crate) fn echo() -> impl Role<Message = Msg> {
    Acts(|_, event, out: &mut Outbox<Msg>| {
        if let Event::Message { from, message: Msg::Ping(n) } = event {
            out.send(from, Msg::Pong(n));
        }
    })
}

/// Sends `count` pings in bursts of `burst` to each peer, checks that pongs come back in order, and reports.
pub(crate) fn pinger(peers: Vec<u16>, count: u64, burst: u64, done: Sender<u64>) -> impl Role<Message = Msg> {
    let mut next = vec![0; peers.len()];
    Acts(move |_, event, out: &mut Outbox<Msg>| match event {
        Event::Start => {
            for peer in &peers {
                (0..burst).for_each(|n| out.send(at(*peer), Msg::Ping(n)));
            }
        }
        Event::Message { from, message: Msg::Pong(n) } => {
            let i = peers.iter().position(|peer| *peer == from.role).unwrap();
            assert_eq!(n, next[i], "pongs of {from:?}");
            next[i] += 1;
            if n + burst < count {
                out.send(from, Msg::Ping(n + burst));
            }
            if next.iter().all(|n| *n == count) {
                done.send(count).unwrap();
            }
        }
        Event::Message { from, message: ping } => {
            let Msg::Ping(n) = ping else { unreachable!() };
            out.send(from, Msg::Pong(n));
        }
        Event::Stop => {}
        Event::Timer(_) | Event::Disk(_) | Event::Work(_) => unreachable!(),
    })
}
