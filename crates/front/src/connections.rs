//! The connections of one event loop: a socket each, its session, and input that is not consumed.

use std::io;

use ordain_gateway::Finished;
use ordain_model::{KeptReply, Micros};
use ordain_resp::{ConnectionId, Context, Received, Session, Shared};

use crate::host::Socket;

/// The number of bytes read from one connection before the next.
pub(crate) const READ: usize = 64 << 10;
/// The number of bytes sent to one connection before the next.
const SENT_AT_ONCE: usize = 4 << 20;
/// Most room that is made ahead for the rest of a command, bytes. What a client announces is not what it sends.
const ROOM_AHEAD: usize = READ;

/// A connection of a client.
#[derive(Debug)]
pub(crate) struct Connection<S> {
    pub(crate) socket: S,
    /// The time since the node started at which it was made.
    pub(crate) since: Micros,
    pub(crate) session: Session,
    /// What was read and not consumed.
    pub(crate) input: Vec<u8>,
    /// The socket may have more to read: events are edge-triggered and do not repeat that.
    pub(crate) readable: bool,
    /// An event has said that the other end has closed its side or the socket has failed, and reading has not come to that
    /// yet. No further event will say so.
    pub(crate) closing: bool,
    /// The session took no more of `input` although a whole command may be in it.
    stopped: bool,
    /// The other end has closed its side, or the socket has failed.
    ended: bool,
    is_touched: bool,
    /// It is among those that wait for room.
    pub(crate) is_in_line: bool,
}

impl<S: Socket> Connection<S> {
    /// A connection made at some time since the node started, with whatever it may have sent already.
    pub(crate) fn new(socket: S, since: Micros, session: Session) -> Connection<S> {
        Connection {
            socket,
            since,
            session,
            input: Vec::new(),
            readable: true,
            closing: false,
            stopped: false,
            ended: false,
            is_touched: false,
            is_in_line: false,
        }
    }

    /// Has the session take what is in `input`, and removes what it consumed.
    fn receive_kept(&mut self, cx: &mut Context<'_>) {
        let Received { consumed, wanted } = self.session.receive(&self.input, cx);
        self.input.drain(..consumed.min(self.input.len()));
        self.stopped = wanted == 0;
    }

    /// Reads and handles what the client has sent, for as long as it may. `buffer` is where what was read lies first.
    pub(crate) fn take_input(&mut self, buffer: &mut [u8], cx: &mut Context<'_>) {
        let has_input = self.session.is_waiting() || !self.input.is_empty();
        if has_input && self.session.wants_input(cx.shared) {
            self.receive_kept(cx);
        }
        let mut budget = READ;
        while self.readable && budget > 0 && self.session.wants_input(cx.shared) {
            match self.socket.read(buffer) {
                Ok(0) => {
                    self.readable = false;
                    self.ended = true;
                }
                Ok(n) => {
                    budget = budget.saturating_sub(n);
                    // A short read has emptied the socket, but for the end that an event has announced already; what
                    // comes later is a new event.
                    self.readable = n == buffer.len() || self.closing || self.socket.keeps_input();
                    self.take_bytes(&buffer[..n], cx);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.readable = false;
                    self.ended = true;
                    self.session.kill();
                }
            }
        }
        if self.ended {
            self.session.drain();
        }
        self.session.keep_input(self.input.len(), cx.shared);
    }

    /// Has the session take bytes after what is in `input`, and keeps what it does not consume.
    fn take_bytes(&mut self, bytes: &[u8], cx: &mut Context<'_>) {
        if self.input.is_empty() {
            let Received { consumed, wanted } = self.session.receive(bytes, cx);
            let rest = &bytes[consumed.min(bytes.len())..];
            self.stopped = wanted == 0;
            let room = if rest.is_empty() { 0 } else { rest.len() + wanted.min(ROOM_AHEAD) };
            self.input.reserve_exact(room);
            self.input.extend_from_slice(rest);
        } else {
            self.input.extend_from_slice(bytes);
            self.receive_kept(cx);
        }
        if self.input.is_empty() && self.input.capacity() > READ {
            self.input = Vec::new();
        }
    }

    /// Tells whether the connection can go on with input that no event will announce.
    pub(crate) fn can_go_on(&self, shared: &Shared) -> bool {
        self.session.wants_input(shared) && (self.readable || (self.stopped && !self.input.is_empty()))
    }

    /// Writes what the session has to send. Answers how many bytes were taken, and whether the socket takes more.
    pub(crate) fn write_output(&mut self) -> (usize, bool) {
        self.is_touched = false;
        let mut sent = 0;
        while !self.session.output().is_empty() {
            if sent >= SENT_AT_ONCE {
                return (sent, true);
            }
            match self.socket.write(self.session.output()) {
                Ok(n) => {
                    sent += n;
                    self.session.sent(n);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.session.kill();
                    break;
                }
            }
        }
        (sent, false)
    }
}

/// The table of an event loop's connections, by slot.
#[derive(Debug)]
pub(crate) struct Connections<S> {
    slots: Vec<Slot<S>>,
    vacant: Vec<u32>,
    /// Slots of connections that have something to send or to go on with.
    touched: Vec<u32>,
}

impl<S> Default for Connections<S> {
    fn default() -> Connections<S> {
        Connections { slots: Vec::new(), vacant: Vec::new(), touched: Vec::new() }
    }
}

#[derive(Debug)]
struct Slot<S> {
    /// The number of connections that have been in the slot.
    generation: u32,
    connection: Option<Connection<S>>,
}

impl<S: Socket> Connections<S> {
    /// A slot without a connection, which is the caller's.
    pub(crate) fn take_slot(&mut self) -> u32 {
        self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, connection: None });
            self.slots.len() as u32 - 1
        })
    }

    /// Gives a slot back that was not filled.
    pub(crate) fn give_back(&mut self, slot: u32) {
        self.vacant.push(slot);
    }

    /// The id of the connection that is or comes into a slot.
    pub(crate) fn id(&self, slot: u32) -> ConnectionId {
        ConnectionId::new(slot, self.slots[slot as usize].generation)
    }

    /// Fills a slot.
    pub(crate) fn put(&mut self, slot: u32, connection: Connection<S>) {
        self.slots[slot as usize].connection = Some(connection);
    }

    /// Takes a connection out, whose slot is vacant then.
    pub(crate) fn remove(&mut self, slot: u32) -> Option<Connection<S>> {
        let place = &mut self.slots[slot as usize];
        let connection = place.connection.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.vacant.push(slot);
        Some(connection)
    }

    /// The connection in a slot.
    pub(crate) fn get(&mut self, slot: u32) -> Option<&mut Connection<S>> {
        self.slots.get_mut(slot as usize)?.connection.as_mut()
    }

    /// The connection in a slot, whose output is written when the roles have run.
    pub(crate) fn touch(&mut self, slot: u32) -> Option<&mut Connection<S>> {
        let connection = self.slots.get_mut(slot as usize)?.connection.as_mut()?;
        if !std::mem::replace(&mut connection.is_touched, true) {
            self.touched.push(slot);
        }
        Some(connection)
    }

    /// The slots touched since this was last called. Each must be written to, which ends that it is touched.
    pub(crate) fn take_touched(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.touched)
    }

    /// Tells whether no connection is touched.
    pub(crate) fn is_untouched(&self) -> bool {
        self.touched.is_empty()
    }

    /// The number of connections.
    pub(crate) fn count(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }

    /// All connections.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Connection<S>> {
        self.slots.iter().filter_map(|slot| slot.connection.as_ref())
    }

    /// All connections, with their slots.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Connection<S>)> {
        let slots = (0..).zip(&mut self.slots);
        slots.filter_map(|(number, slot)| Some((number, slot.connection.as_mut()?)))
    }

    /// Touches the connections for which `is_changed` says so.
    pub(crate) fn touch_if(&mut self, mut is_changed: impl FnMut(&mut Connection<S>) -> bool) {
        for slot in 0..self.slots.len() as u32 {
            if self.get(slot).is_some_and(&mut is_changed) {
                self.touch(slot);
            }
        }
    }

    /// Hands a session the end of its request.
    pub(crate) fn finish(&mut self, finished: &Finished<'_>, kept: Option<KeptReply>, cx: &mut Context<'_>) {
        let slot = ConnectionId::of(finished.ticket).slot() as u32;
        if let Some(connection) = self.touch(slot) {
            connection.session.finished_kept(finished, kept, cx);
        }
    }
}
