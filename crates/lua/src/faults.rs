//! Errors: the place in the source at which one happened, and the name that a value has there.

use crate::budget::Fault;
use crate::machine::{Frame, Machine};
use crate::op::{CONSTANT, LocalName, Op, Operand};
use crate::value::Value;

impl Machine {
    /// `source:line: ` of a frame.
    pub(crate) fn place_of(&self, frame: &Frame) -> (Vec<u8>, u32) {
        let loaded = &self.loaded[frame.proto as usize];
        let pc = frame.pc.saturating_sub(loaded.code + 1);
        let line = loaded.proto.lines.get(pc).copied().unwrap_or(0);
        ([&loaded.source[..], format!(":{line}: ").as_bytes()].concat(), line)
    }

    /// Makes an error text a value, with the place of the instruction that runs before it.
    pub(crate) fn located(&mut self, fault: Fault) -> Fault {
        let Some(frame) = self.frames.last().copied() else { return fault };
        let (place, line) = self.place_of(&frame);
        if self.error_line == 0 {
            self.error_line = line;
        }
        match fault {
            Fault::Text(text) => {
                let text = [place, text].concat();
                match self.heap.text(&text) {
                    Ok(value) => Fault::Error(value),
                    Err(fault) => fault,
                }
            }
            other => other,
        }
    }

    /// Says that the function that runs was called as a method of an object.
    pub(crate) fn is_method_call(&self) -> bool {
        self.frames.last().is_some_and(|frame| {
            let code = self.loaded[frame.proto as usize].code;
            match frame.pc.checked_sub(1).and_then(|pc| self.code.get(pc)) {
                Some(Op::Call { a, .. } | Op::TailCall { a, .. }) if frame.pc > code => {
                    matches!(self.name_of(frame, u16::from(*a)), Some(("method", _)))
                }
                _ => false,
            }
        })
    }

    pub(crate) fn type_error(&self, what: &str, value: Value, operand: Operand) -> Fault {
        let kind = value.type_name();
        match self.frames.last().and_then(|frame| self.name_of(frame, operand)) {
            Some((place, name)) => {
                let mut text = format!("attempt to {what} {place} '").into_bytes();
                text.extend_from_slice(&name[..name.len().min(60)]);
                text.extend_from_slice(format!("' (a {kind} value)").as_bytes());
                Fault::Text(text)
            }
            None => format!("attempt to {what} a {kind} value").into(),
        }
    }

    /// The origin of the value of a register, and its name there.
    pub(crate) fn name_of(&self, frame: &Frame, operand: Operand) -> Option<(&'static str, Vec<u8>)> {
        if operand & CONSTANT != 0 {
            return None;
        }
        let loaded = &self.loaded[frame.proto as usize];
        let proto = &loaded.proto;
        let mut register = operand as u8;
        let mut pc = frame.pc.checked_sub(loaded.code + 1)?;
        let constant = |k: usize| match self.constants.get(loaded.constants + k) {
            Some(Value::String(s)) => self.heap.bytes(*s).to_vec(),
            _ => b"?".to_vec(),
        };
        // A value that was moved is followed to its origin, a few times.
        for _ in 0..4 {
            let is_it = |local: &&LocalName| {
                local.register == register && (local.from as usize..local.to as usize).contains(&pc)
            };
            if let Some(local) = proto.locals.iter().rev().find(is_it) {
                return Some(("local", local.name.to_vec()));
            }
            let at = (pc.saturating_sub(10_000)..pc)
                .rev()
                .find(|at| proto.code[*at].written().contains(&u16::from(register)))?;
            match proto.code[at] {
                Op::Move { b, .. } => (register, pc) = (b, at),
                Op::GetGlobal { k, .. } => return Some(("global", constant(k as usize))),
                Op::GetField { k, .. } => return Some(("field", constant(usize::from(k)))),
                Op::GetTable { c, .. } => {
                    let name =
                        if c & CONSTANT != 0 { constant(usize::from(c & !CONSTANT)) } else { b"?".to_vec() };
                    return Some(("field", name));
                }
                Op::Method { a, c, .. } if a == register => {
                    return Some(("method", constant(usize::from(c & !CONSTANT))));
                }
                Op::GetUpvalue { u, .. } => {
                    return Some(("upvalue", proto.capture_names.get(usize::from(u))?.to_vec()));
                }
                _ => return None,
            }
        }
        None
    }
}
