//! A virtual connection: a queue of bytes each way, of which each end has what has arrived.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ordain_front::Socket;

/// A direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// The bytes of one direction.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// Bytes that were sent and have not arrived.
    flight: VecDeque<u8>,
    /// Bytes that have arrived and were not read.
    arrived: VecDeque<u8>,
    /// Bytes in flight whose arrival nobody has scheduled yet.
    unscheduled: usize,
    /// The sender sends no more.
    is_closed: bool,
    /// The end that the sender has sent is scheduled.
    is_end_scheduled: bool,
    /// The reader has everything, and knows that no more comes.
    has_ended: bool,
}

impl Lane {
    fn send(&mut self, bytes: &[u8]) {
        self.flight.extend(bytes);
        self.unscheduled += bytes.len();
    }

    fn under_way(&self) -> usize {
        self.flight.len() + self.arrived.len()
    }

    /// The next bytes arrive, at most so many.
    fn arrive(&mut self, count: usize) {
        let count = count.min(self.flight.len());
        self.arrived.extend(self.flight.drain(..count));
    }
}

/// The state of a connection, between its two ends.
#[derive(Debug)]
pub(crate) struct Wire {
    up: Lane,
    down: Lane,
    /// The most bytes to the client that are under way, or have arrived and were not taken.
    window: usize,
    /// The connection is reset: neither end gets anything more.
    is_broken: bool,
    /// The client has closed its whole end: what comes for it resets the connection.
    is_abandoned: bool,
    /// The server has closed its end.
    is_closed: bool,
    /// The role of the server that has it.
    server: Option<u16>,
    /// The server was refused a write for lack of room.
    wants_room: bool,
    /// The server has yet to hear that the socket is readable, or takes more.
    readable: bool,
    writable: bool,
}

impl Wire {
    pub(crate) fn new(window: usize) -> Wire {
        Wire {
            up: Lane::default(),
            down: Lane::default(),
            window: window.max(1),
            is_broken: false,
            is_abandoned: false,
            is_closed: false,
            server: None,
            wants_room: false,
            readable: false,
            writable: false,
        }
    }

    fn lane(&mut self, way: Way) -> &mut Lane {
        match way {
            Way::Up => &mut self.up,
            Way::Down => &mut self.down,
        }
    }

    /// The client sends bytes. They go nowhere once the connection is broken, or its end closed.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        if !self.is_broken && !self.up.is_closed {
            self.up.send(bytes);
        }
    }

    /// Takes the number of bytes whose arrival is to be scheduled, and whether the end of the lane is.
    pub(crate) fn take_unscheduled(&mut self, way: Way) -> (usize, bool) {
        let lane = self.lane(way);
        let ends = lane.is_closed && !std::mem::replace(&mut lane.is_end_scheduled, lane.is_closed);
        (std::mem::take(&mut lane.unscheduled), ends)
    }

    /// The next bytes of a lane arrive, at most so many. True if the server has something to do then.
    pub(crate) fn arrive(&mut self, way: Way, count: usize) -> bool {
        if self.is_broken {
            return false;
        }
        if way == Way::Down && self.is_abandoned {
            return self.break_off();
        }
        if way == Way::Up && self.is_closed {
            // Nobody reads it: the other end hears that in the end.
            self.break_off();
            return false;
        }
        self.lane(way).arrive(count);
        self.readable |= way == Way::Up;
        way == Way::Up
    }

    /// The end of a lane arrives. `None` if bytes that were sent before it are still under way.
    pub(crate) fn end(&mut self, way: Way) -> Option<bool> {
        let is_up = way == Way::Up;
        let lane = self.lane(way);
        if !lane.flight.is_empty() && !self.is_broken {
            return None;
        }
        self.lane(way).has_ended = true;
        self.readable |= is_up;
        Some(is_up && !self.is_closed)
    }

    /// The connection is reset. True if the server has something to do then.
    pub(crate) fn break_off(&mut self) -> bool {
        self.is_broken = true;
        for lane in [&mut self.up, &mut self.down] {
            lane.flight.clear();
            lane.unscheduled = 0;
        }
        self.readable = true;
        !self.is_closed
    }

    /// The client takes what has arrived for it. True if the server can go on writing.
    pub(crate) fn take(&mut self, into: &mut Vec<u8>) -> bool {
        into.extend(self.down.arrived.drain(..));
        let goes_on = std::mem::take(&mut self.wants_room);
        self.writable |= goes_on;
        goes_on
    }

    /// The client sends no more, and still reads.
    pub(crate) fn close_half(&mut self) {
        self.up.is_closed = true;
    }

    /// The client closes its end: what still comes for it resets the connection.
    pub(crate) fn abandon(&mut self) {
        self.up.is_closed = true;
        self.is_abandoned = true;
        self.down.arrived.clear();
    }

    /// True if the client has bytes to take.
    pub(crate) fn has_arrived(&self) -> bool {
        !self.down.arrived.is_empty()
    }

    /// True once the client gets nothing more.
    pub(crate) fn is_over(&self) -> bool {
        self.is_broken || self.is_abandoned || self.down.has_ended && self.down.arrived.is_empty()
    }

    /// True while bytes are on their way, or the server has not read what has arrived.
    pub(crate) fn is_busy(&self) -> bool {
        let lanes = [&self.up, &self.down];
        let under_way = lanes
            .iter()
            .any(|lane| !lane.flight.is_empty() || lane.unscheduled > 0 || lane.is_closed && !lane.has_ended);
        !self.is_broken && under_way || !self.is_closed && (self.readable || self.writable)
    }

    /// Takes what the server has to hear: whether the socket has something to read, or an end; whether that is an end;
    /// and whether it takes more.
    pub(crate) fn take_readiness(&mut self) -> (bool, bool, bool) {
        let is_ending = self.is_broken || self.up.has_ended;
        (std::mem::take(&mut self.readable), is_ending, std::mem::take(&mut self.writable))
    }
}

/// A connection that both of its ends hold.
#[derive(Clone, Debug)]
pub struct VirtualSocket(Arc<Mutex<Wire>>);

impl VirtualSocket {
    pub(crate) fn new(wire: Wire) -> VirtualSocket {
        VirtualSocket(Arc::new(Mutex::new(wire)))
    }

    pub(crate) fn wire(&self) -> MutexGuard<'_, Wire> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether both are the same connection.
    pub(crate) fn is(&self, other: &VirtualSocket) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The role of the server that has it, if one has it yet.
    pub(crate) fn server(&self) -> Option<u16> {
        self.wire().server
    }

    /// A server has it from now on.
    pub(crate) fn served_by(&self, role: u16) {
        let mut wire = self.wire();
        wire.server = Some(role);
        wire.readable |= !wire.up.arrived.is_empty();
    }

    /// The server sends a few last words and closes its end, without having served the connection.
    pub(crate) fn refuse(&self, words: &[u8]) {
        self.wire().down.send(words);
        self.close();
    }

    /// The server closes its end.
    pub(crate) fn close(&self) {
        let mut wire = self.wire();
        wire.is_closed = true;
        wire.down.is_closed = true;
        if !wire.up.arrived.is_empty() {
            // As TCP does when a socket is closed that has not been read to the end.
            wire.break_off();
        }
    }
}

impl io::Read for VirtualSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut wire = self.wire();
        if wire.is_broken {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let count = buffer.len().min(wire.up.arrived.len());
        if count == 0 {
            return if wire.up.has_ended { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        for (place, byte) in buffer.iter_mut().zip(wire.up.arrived.drain(..count)) {
            *place = byte;
        }
        Ok(count)
    }
}

impl io::Write for VirtualSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut wire = self.wire();
        if wire.is_broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let count = bytes.len().min(wire.window.saturating_sub(wire.down.under_way()));
        if count == 0 {
            wire.wants_room = true;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        wire.down.send(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Socket for VirtualSocket {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};

    fn read(socket: &mut VirtualSocket) -> io::Result<Vec<u8>> {
        let mut buffer = [0; 64];
        socket.read(&mut buffer).map(|count| buffer[..count].to_vec())
    }

    #[test]
    fn bytes_arrive_in_order_and_then_the_end() {
        let mut socket = VirtualSocket::new(Wire::new(64));
        socket.wire().send(b"abcdef");
        socket.wire().close_half();
        assert_eq!(socket.wire().take_unscheduled(Way::Up), (6, true));
        assert_eq!(socket.wire().take_unscheduled(Way::Up), (0, false));
        assert_eq!(read(&mut socket).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(socket.wire().arrive(Way::Up, 4));
        assert_eq!(socket.wire().take_readiness(), (true, false, false));
        assert_eq!(socket.wire().end(Way::Up), None, "two bytes are under way");
        assert_eq!(read(&mut socket).unwrap(), b"abcd");
        assert!(socket.wire().arrive(Way::Up, 9));
        assert_eq!(socket.wire().end(Way::Up), Some(true));
        assert_eq!(socket.wire().take_readiness(), (true, true, false));
        assert_eq!(read(&mut socket).unwrap(), b"ef");
        assert_eq!(read(&mut socket).unwrap(), b"");
    }

    #[test]
    fn a_full_window_refuses_bytes_until_the_client_has_taken_some() {
        let mut socket = VirtualSocket::new(Wire::new(4));
        assert_eq!(socket.write(b"abcdef").unwrap(), 4);
        assert_eq!(socket.write(b"ef").unwrap_err().kind(), io::ErrorKind::WouldBlock);
        socket.wire().arrive(Way::Down, 4);
        let mut taken = Vec::new();
        assert!(socket.wire().take(&mut taken));
        assert_eq!(taken, b"abcd");
        assert_eq!(socket.wire().take_readiness(), (false, false, true));
        assert_eq!(socket.write(b"ef").unwrap(), 2);
    }

    #[test]
    fn a_reset_loses_what_is_under_way_and_both_ends_hear_of_it() {
        let mut socket = VirtualSocket::new(Wire::new(64));
        socket.wire().send(b"abc");
        assert!(socket.wire().break_off());
        assert!(!socket.wire().arrive(Way::Up, 3));
        assert_eq!(read(&mut socket).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(socket.write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert!(socket.wire().is_over());
    }

    #[test]
    fn what_comes_for_a_client_that_has_gone_resets_the_connection() {
        let mut socket = VirtualSocket::new(Wire::new(64));
        socket.wire().abandon();
        assert_eq!(socket.write(b"x").unwrap(), 1);
        assert!(socket.wire().arrive(Way::Down, 1), "the server hears of it");
        assert_eq!(socket.write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
