//! Reads a checkpoint while its bytes arrive, and holds no more of them than one frame and what has come of the next.

use ordain_model::Epoch;
use ordain_model::wire::Codec as _;
use ordain_role::{Directory, DiskError, DiskOp};

use crate::format::{HEAD, Head, Header, KIND_END, file_name};
use crate::piece::Item;
use crate::read::{Begin, CheckpointError, Frames, Source, Unfit};
use crate::write::Totals;

/// A checkpoint whose bytes arrive in their order.
#[derive(Debug)]
pub struct Arriving {
    epoch: Epoch,
    /// The bytes that are not read yet; the file has those from `begin.offset` on there.
    bytes: Vec<u8>,
    begin: Begin,
    /// The contents read so far, once the header is here.
    frames: Option<Frames>,
    totals: Option<Totals>,
}

impl Arriving {
    /// Nothing yet of the checkpoint of an epoch.
    pub const fn new(epoch: Epoch) -> Arriving {
        let begin = Begin { offset: 0, chain: 0 };
        Arriving { epoch, bytes: Vec::new(), begin, frames: None, totals: None }
    }

    /// The header, once it is here.
    pub fn header(&self) -> Option<&Header> {
        self.frames.as_ref().map(|frames| &frames.header)
    }

    /// Takes the next bytes, and shows the items of all frames that are whole by now. `accept` is shown the header before.
    ///
    /// # Errors
    /// [`CheckpointError`]; none of the items shown until then are to be used.
    pub fn take(
        &mut self,
        bytes: &[u8],
        accept: impl FnOnce(&Header) -> Result<(), String>,
        mut visit: impl FnMut(Item<'_>) -> Result<(), String>,
    ) -> Result<(), CheckpointError> {
        self.bytes.extend_from_slice(bytes);
        let mut frames = match self.frames.take() {
            Some(frames) => frames,
            None => match self.take_header()? {
                Some(header) => {
                    accept(&header).map_err(|reason| self.unfit(Unfit::Refused(reason)))?;
                    Frames::of(header)
                }
                None => return Ok(()),
            },
        };
        let mut read = 0;
        while let Some((head, payload)) = self.next_frame(read)? {
            let (is_end, len) = (head.kind == KIND_END, HEAD + payload.len());
            if is_end && Totals::from_bytes(payload) != Some(frames.totals) {
                return Err(self.damaged("what it holds does not add up to what its end says"));
            }
            if !is_end {
                frames.take(&head, payload, &mut visit).map_err(|unfit| self.unfit(unfit))?;
            }
            self.totals = is_end.then_some(frames.totals);
            read += len;
            self.begin = Begin { offset: self.begin.offset + len as u64, chain: head.chain };
        }
        self.bytes.drain(..read);
        if self.totals.is_some() && !self.bytes.is_empty() {
            return Err(self.damaged("something follows the end"));
        }
        self.frames = Some(frames);
        Ok(())
    }

    /// The totals of the checkpoint, if all of it has come.
    ///
    /// # Errors
    /// [`CheckpointError::Unfinished`].
    pub fn end(&self) -> Result<Totals, CheckpointError> {
        let len = self.begin.offset + self.bytes.len() as u64;
        self.totals.ok_or_else(|| CheckpointError::Unfinished { file: file_name(self.epoch), len })
    }

    /// Takes the header off the front, if it is here.
    fn take_header(&mut self) -> Result<Option<Header>, CheckpointError> {
        let file = file_name(self.epoch);
        let come = Come(&self.bytes);
        match (Source { directory: &come, file }).header(self.epoch) {
            Ok((header, begin)) => {
                self.bytes.drain(..usize::try_from(begin.offset).unwrap_or(self.bytes.len()));
                self.begin = begin;
                Ok(Some(header))
            }
            Err(CheckpointError::Unfinished { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The frame that begins so many bytes behind the front, if all of it is here.
    fn next_frame(&self, at: usize) -> Result<Option<(Head, &[u8])>, CheckpointError> {
        let Some((head, rest)) = self.bytes[at..].split_at_checked(HEAD).filter(|_| self.totals.is_none())
        else {
            return Ok(None);
        };
        let head = Head::read(head, self.begin.chain)
            .ok_or_else(|| self.damaged("no frame that continues the one before begins here"))?;
        let payload = usize::try_from(head.len).ok().and_then(|len| rest.get(..len));
        match payload {
            Some(payload) if crc32c::crc32c(payload) != head.payload => {
                Err(self.damaged("the frame's checksum is wrong"))
            }
            payload => Ok(payload.map(|payload| (head, payload))),
        }
    }

    fn damaged(&self, reason: &'static str) -> CheckpointError {
        self.unfit(Unfit::Damaged(reason))
    }

    fn unfit(&self, unfit: Unfit) -> CheckpointError {
        unfit.at(file_name(self.epoch), self.begin.offset)
    }
}

/// The bytes that have come, as the beginning of a file.
#[derive(Debug)]
struct Come<'a>(&'a [u8]);

impl Directory for Come<'_> {
    fn list(&self) -> Result<Vec<(String, u64)>, DiskError> {
        Ok(Vec::new())
    }

    fn read(&self, _file: &str, offset: u64, len: usize) -> Result<Vec<u8>, DiskError> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(self.0.len());
        let until = from.saturating_add(len).min(self.0.len());
        Ok(self.0[from..until].to_vec())
    }

    fn apply(&mut self, op: &DiskOp) -> Result<(), DiskError> {
        Err(DiskError::ReadOnly { file: format!("{op:?}") })
    }
}
