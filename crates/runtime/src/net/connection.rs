//! One TCP connection: what has arrived and is not whole yet, and what is to leave.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};

use bytes::BytesMut;
use ordain_model::Micros;

use super::handshake::Handshake;
use super::output::Output;
use crate::tls::Stream;

/// The number of bytes read before other connections are served.
pub(super) const READ_AT_ONCE: usize = 1 << 20;
/// The number of bytes read with one call.
pub(super) const CHUNK: usize = 64 << 10;
/// A buffer that was larger gives its memory back when it is empty.
const USUAL: usize = 1 << 20;

/// The stage of a connection.
#[derive(Debug)]
pub(super) enum Stage {
    /// Nothing that comes is believed. The stage must be over by a time.
    Unproven { handshake: Box<Handshake>, dialled: Option<usize>, by: Micros },
    /// The other side is this peer, by its place in the list, since a time.
    Proven { peer: usize, since: Micros },
}

/// A connection and its buffers.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: Stream,
    pub(super) stage: Stage,
    pub(super) input: BytesMut,
    pub(super) output: Output,
    /// What is to leave at a time and not before, in order.
    late: VecDeque<(Micros, Output)>,
    late_bytes: usize,
    pub(super) is_writable: bool,
    /// It is on the list of those that may have something to send.
    pub(super) is_sending: bool,
    /// There may be more to read than was read.
    pub(super) is_readable: bool,
    /// The other side has closed it, or it has failed: what there is to read ends with that.
    pub(super) is_over: bool,
}

/// The outcome of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Intake {
    /// So many bytes.
    Some(usize),
    /// Nothing for now.
    Nothing,
    /// The other side has closed it.
    End,
}

impl Connection {
    pub(super) fn new(stream: Stream, stage: Stage) -> Connection {
        Connection {
            stream,
            stage,
            input: BytesMut::new(),
            output: Output::default(),
            late: VecDeque::new(),
            late_bytes: 0,
            is_writable: false,
            is_sending: false,
            is_readable: false,
            is_over: false,
        }
    }

    /// Reads once, by way of `scratch`. What does not fill that was all: the next to come makes the connection readable
    /// again, so a call that would only say so is saved.
    pub(super) fn read(&mut self, scratch: &mut [u8]) -> io::Result<Intake> {
        let result = loop {
            match self.stream.read(scratch) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        match result {
            Ok(0) => Ok(Intake::End),
            Ok(n) => {
                self.input.extend_from_slice(&scratch[..n]);
                self.is_readable = n == scratch.len() || self.is_over || self.stream.is_tls();
                Ok(Intake::Some(n))
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => {
                self.is_readable = false;
                Ok(Intake::Nothing)
            }
            Err(error) => Err(error),
        }
    }

    /// Whole frames have been taken from the input.
    pub(super) fn taken(&mut self) {
        if self.input.is_empty() && self.input.capacity() > USUAL {
            self.input = BytesMut::new();
        }
    }

    /// Adds what leaves at a time, not before what was added before.
    pub(super) fn push_late(&mut self, at: Micros, what: Output) {
        self.late_bytes += what.len();
        self.late.push_back((at, what));
    }

    /// The time at which the next late bytes leave.
    pub(super) fn late_due(&self) -> Option<Micros> {
        self.late.front().map(|(at, _)| *at)
    }

    /// The number of bytes that have not left yet.
    pub(super) fn pending(&self) -> usize {
        self.output.len() + self.late_bytes
    }

    /// Writes what is due, with one call to the system if it takes all; answers how many bytes have left.
    pub(super) fn write(&mut self, now: Micros) -> io::Result<usize> {
        while let Some((_, what)) = self.late.pop_front_if(|(at, _)| *at <= now) {
            self.late_bytes -= what.len();
            self.output.append(what);
        }
        if self.is_writable && self.stream.has_pending() {
            self.stream.flush()?;
        }
        let mut count = 0;
        while self.is_writable && self.output.len() > 0 {
            match self.output.write(&mut self.stream) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => count += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => {
                    self.is_writable = false;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }

    /// Writes what the system still takes, and drops the connection.
    pub(super) fn close(mut self) {
        // Whether it arrives is all the same to us.
        let _ = self.write(Micros(u64::MAX));
        self.stream.close();
    }
}
