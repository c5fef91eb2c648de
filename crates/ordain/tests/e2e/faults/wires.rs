//! The links between the nodes of a cluster on loopback, as proxies that a test holds: what crosses a link can be held back,
//! lost or cut off.
//!
//! A pair of nodes has one connection, which the lower number dials: it is told the proxy for the address of the other.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// What becomes of the bytes that cross from one node to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Passage {
    /// They arrive.
    #[default]
    Open,
    /// They wait.
    Held,
    /// They are lost. What follows once the way is open again arrives, in the middle of something.
    Lost,
}

/// One direction of a link.
#[derive(Default)]
struct Way {
    passage: Mutex<Passage>,
    changed: Condvar,
    /// Bytes a second that cross at most, if there is a limit.
    rate: Mutex<Option<u32>>,
}

impl Way {
    fn set(&self, passage: Passage) {
        *self.passage.lock().unwrap() = passage;
        self.changed.notify_all();
    }

    /// Waits while bytes are held; whether they arrive then.
    fn pass(&self, is_over: &AtomicBool) -> bool {
        let passage = self.passage.lock().unwrap();
        let is_held = |passage: &mut Passage| *passage == Passage::Held && !is_over.load(Ordering::Relaxed);
        *self.changed.wait_while(passage, is_held).unwrap() == Passage::Open
    }

    /// Waits for as long as so many bytes take to cross.
    fn take_time(&self, bytes: usize, is_over: &AtomicBool) {
        let Some(rate) = *self.rate.lock().unwrap() else { return };
        let arrives = Instant::now() + Duration::from_secs_f64(bytes as f64 / f64::from(rate));
        let mut passage = self.passage.lock().unwrap();
        while !is_over.load(Ordering::Relaxed) {
            let left = arrives.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            (passage, _) = self.changed.wait_timeout(passage, left).unwrap();
        }
    }

    /// Carries bytes from one socket to the other until either has ended, and ends both then.
    fn carry(&self, mut from: TcpStream, mut to: TcpStream, is_over: &AtomicBool) {
        let mut bytes = vec![0; 64 << 10];
        loop {
            match from.read(&mut bytes) {
                Ok(0) | Err(_) => break,
                Ok(count) => {
                    self.take_time(count, is_over);
                    if self.pass(is_over) && to.write_all(&bytes[..count]).is_err() {
                        break;
                    }
                }
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
}

/// A link of two nodes.
struct Link {
    /// The address that the lower number dials.
    proxy: SocketAddr,
    /// From the lower number to the higher one, and back.
    ways: [Way; 2],
    /// The sockets of the connections that there are.
    sockets: Mutex<Vec<TcpStream>>,
}

/// The links of all pairs of nodes.
pub struct Wires {
    links: BTreeMap<(usize, usize), Arc<Link>>,
    is_over: Arc<AtomicBool>,
}

impl Wires {
    /// Proxies between nodes that listen for each other at these addresses.
    pub fn between(nodes: &[SocketAddr]) -> Wires {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut links = BTreeMap::new();
        for (higher, target) in nodes.iter().copied().enumerate() {
            for lower in 0..higher {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let proxy = listener.local_addr().unwrap();
                let link = Arc::new(Link { proxy, ways: Default::default(), sockets: Mutex::default() });
                links.insert((lower, higher), link.clone());
                let is_over = is_over.clone();
                thread::spawn(move || link.serve(&listener, target, &is_over));
            }
        }
        Wires { links, is_over }
    }

    /// Where a node finds another: at its proxy, if the node is the one that dials.
    pub fn address(&self, of: usize, seen_by: usize) -> Option<SocketAddr> {
        self.links.get(&(seen_by, of)).map(|link| link.proxy)
    }

    fn set(&self, from: usize, to: usize, passage: Passage) {
        self.links[&(from.min(to), from.max(to))].ways[usize::from(from > to)].set(passage);
    }

    /// What crosses from one node to another is lost from now on.
    pub fn lose(&self, from: usize, to: usize) {
        self.set(from, to, Passage::Lost);
    }

    /// What crosses from one node to another waits from now on.
    pub fn hold(&self, from: usize, to: usize) {
        self.set(from, to, Passage::Held);
    }

    /// What crosses from one node to another arrives from now on, with what was held.
    pub fn open(&self, from: usize, to: usize) {
        self.set(from, to, Passage::Open);
    }

    /// What crosses from one node to another takes its time from now on: so many bytes a second arrive at most.
    pub fn slow_down(&self, from: usize, to: usize, bytes_per_second: u32) {
        let way = &self.links[&(from.min(to), from.max(to))].ways[usize::from(from > to)];
        *way.rate.lock().unwrap() = Some(bytes_per_second);
    }

    /// Ends the connection of two nodes, wherever in a frame it is.
    pub fn reset(&self, one: usize, other: usize) {
        self.links[&(one.min(other), one.max(other))].end();
    }
}

impl Link {
    fn serve(&self, listener: &TcpListener, target: SocketAddr, is_over: &Arc<AtomicBool>) {
        thread::scope(|scope| {
            for near in listener.incoming() {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(near) = near else { continue };
                // A node that is down refuses, and the proxy ends the connection for it.
                let Ok(far) = TcpStream::connect(target) else { continue };
                let both = [&near, &far].map(|socket| {
                    socket.set_nodelay(true).unwrap();
                    [socket.try_clone().unwrap(), socket.try_clone().unwrap()]
                });
                let [[near, near_too], [far, far_too]] = both;
                let mut sockets = self.sockets.lock().unwrap();
                sockets.retain(|socket| socket.peer_addr().is_ok());
                sockets.extend([near.try_clone().unwrap(), far.try_clone().unwrap()]);
                scope.spawn(|| self.ways[0].carry(near, far_too, is_over));
                scope.spawn(|| self.ways[1].carry(far, near_too, is_over));
            }
        });
    }

    fn end(&self) {
        for socket in self.sockets.lock().unwrap().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for link in self.links.values() {
            link.ways.iter().for_each(|way| way.set(Passage::Open));
            link.end();
            // The proxy looks up when somebody connects.
            let _ = TcpStream::connect_timeout(&link.proxy, Duration::from_secs(1));
        }
    }
}
