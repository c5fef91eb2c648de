//! Variables: the register, the captured variable or the global that a name stands for.

use super::{Block, Compiled, Compiler, Local, MAX_LOCALS, MAX_UPVALUES};
use crate::ast::NameId;
use crate::op::{Capture, LocalName, Op};
use crate::parser::Refusal;

pub(super) enum Variable {
    Local(u8),
    Upvalue(u8),
    Global,
}

impl Compiler<'_, '_> {
    pub(super) fn declare(&mut self, name: NameId, register: u8) -> Compiled<()> {
        if self.f().locals.len() >= MAX_LOCALS {
            let line = self.f().first_line;
            return self.fail(match line {
                0 => format!("main function has more than {MAX_LOCALS} local variables"),
                line => format!("function at line {line} has more than {MAX_LOCALS} local variables"),
            });
        }
        let text = self.tree.names[name as usize].clone();
        let f = self.f();
        let noted = f.proto.locals.len();
        let from = f.proto.code.len() as u32;
        f.proto.locals.push(LocalName { name: text, register, from, to: u32::MAX });
        f.locals.push(Local { name, register, noted, is_arg: false });
        Ok(())
    }

    pub(super) fn open_block(&mut self, is_loop: bool) {
        let locals = self.f().locals.len();
        self.f().blocks.push(Block { locals, breaks: Vec::new(), is_loop, captured: false });
    }

    /// Ends a block: its variables go, and are closed if an inner function has them.
    pub(super) fn close_block(&mut self) -> Vec<usize> {
        let end = self.here() as u32;
        let f = self.f();
        let Some(block) = f.blocks.pop() else { return Vec::new() };
        if let Some(first) = f.locals.get(block.locals) {
            let register = first.register;
            for local in f.locals.drain(block.locals..) {
                f.proto.locals[local.noted].to = end;
            }
            f.free = u16::from(register);
            if block.captured {
                self.emit(Op::Close { a: register });
            }
        }
        block.breaks
    }

    fn find_local(&mut self, func: usize, name: NameId) -> Option<(u8, usize)> {
        let f = &mut self.funcs[func];
        self.budget.probe(f.locals.len() / 4);
        let at = f.locals.iter().rposition(|local| local.name == name)?;
        f.uses_arg |= f.locals[at].is_arg;
        Some((f.locals[at].register, at))
    }

    pub(super) fn variable(&mut self, name: NameId) -> Compiled<Variable> {
        self.budget.work(1).map_err(|_| Refusal::Dead)?;
        let last = self.funcs.len() - 1;
        if let Some((register, _)) = self.find_local(last, name) {
            return Ok(Variable::Local(register));
        }
        Ok(match self.upvalue(last, name)? {
            Some(index) => Variable::Upvalue(index),
            None => Variable::Global,
        })
    }

    fn upvalue(&mut self, func: usize, name: NameId) -> Compiled<Option<u8>> {
        if let Some(index) = self.funcs[func].captured.iter().position(|n| *n == name) {
            return Ok(Some(index as u8));
        }
        // Outward to the function that has the variable, then inward again.
        let mut owner = func;
        let capture = loop {
            let Some(outer) = owner.checked_sub(1) else { return Ok(None) };
            if let Some((register, at)) = self.find_local(outer, name) {
                let block = self.funcs[outer].blocks.iter_mut().rfind(|block| block.locals <= at);
                if let Some(block) = block {
                    block.captured = true;
                }
                break Capture { is_local: true, index: register };
            }
            if let Some(index) = self.funcs[outer].captured.iter().position(|n| *n == name) {
                break Capture { is_local: false, index: index as u8 };
            }
            owner = outer;
        };
        let mut capture = capture;
        for inner in owner..=func {
            let text = self.tree.names[name as usize].clone();
            let f = &mut self.funcs[inner];
            if f.captured.len() >= MAX_UPVALUES {
                let line = f.first_line;
                return self.fail(format!("function at line {line} has more than {MAX_UPVALUES} upvalues"));
            }
            f.captured.push(name);
            f.proto.captures.push(capture);
            f.proto.capture_names.push(text);
            capture = Capture { is_local: false, index: (f.captured.len() - 1) as u8 };
        }
        Ok(Some(capture.index))
    }

    pub(super) fn store_variable(&mut self, variable: Variable, name: NameId, a: u8) -> Compiled<()> {
        match variable {
            Variable::Upvalue(u) => self.emit(Op::SetUpvalue { a, u }),
            _ => {
                let k = self.text_constant(name)?;
                self.emit(Op::SetGlobal { a, k });
            }
        }
        Ok(())
    }
}
