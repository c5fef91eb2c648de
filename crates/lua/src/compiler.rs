//! From a tree to instructions for a machine of registers.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ast::{Binary, BlockId, Expr, ExprId, Field, Function, NameId, Stat, Tree, Unary};
use crate::budget::{Budget, Death};
use crate::lexer::SyntaxError;
use crate::op::{CONSTANT, Capture, Constant, LocalName, Op, Operand, Proto};
use crate::parser::{Parser, Refusal};

const MAX_LOCALS: usize = 200;
const MAX_UPVALUES: usize = 60;
const MAX_REGISTERS: u16 = 250;
const MAX_CONSTANTS: usize = 1 << 18;
/// Items of a constructor that are set at once.
const ITEMS_AT_ONCE: usize = 50;
/// Units of work that a byte of source costs.
const UNITS_PER_BYTE: u64 = 2;

/// A compiled source, with what compiling it costs, whoever compiles it.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) proto: Arc<Proto>,
    pub(crate) source: Arc<[u8]>,
    pub(crate) work: u64,
    pub(crate) memory: usize,
}

/// The reason for which a source was not compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompileError {
    /// It is no Lua: the error, with the name of the source and the line.
    Syntax(Vec<u8>),
    /// It is too large for the budget.
    Dead(Death),
}

/// The name of a source as errors show it: `=name` and `@name` as they are, else the source itself, shortened.
pub fn chunk_name(name: &[u8]) -> Vec<u8> {
    const LONGEST: usize = 59;
    match name {
        [b'=', rest @ ..] => rest[..rest.len().min(LONGEST)].to_vec(),
        [b'@', rest @ ..] if rest.len() > LONGEST - 8 => {
            [b"...", &rest[rest.len() - (LONGEST - 8)..]].concat()
        }
        [b'@', rest @ ..] => rest.to_vec(),
        _ => {
            let line = name.iter().position(|b| matches!(b, b'\n' | b'\r')).unwrap_or(name.len());
            let shown = line.min(LONGEST - 17);
            let dots: &[u8] = if shown < name.len() { b"..." } else { b"" };
            [b"[string \"", &name[..shown], dots, b"\"]"].concat()
        }
    }
}

/// Compiles a source, whose name stands in its errors.
///
/// # Errors
/// [`CompileError`].
pub fn compile(
    source: &[u8],
    name: &(impl AsRef<[u8]> + ?Sized),
    limit: usize,
    work: u64,
) -> Result<Program, CompileError> {
    let name = name.as_ref();
    let mut budget = Budget::new(work.min(i64::MAX as u64) as i64, limit);
    let before = budget.left();
    let dead = |budget: &Budget| CompileError::Dead(budget.death().unwrap_or(Death::Internal));
    if budget.work(1 + source.len() as u64 * UNITS_PER_BYTE).is_err() {
        return Err(dead(&budget));
    }
    let compiled = Parser::parse(source, &mut budget).and_then(|(tree, main)| {
        let arg = tree.names.iter().position(|name| **name == *b"arg").map(|name| name as NameId);
        let mut compiler = Compiler { tree: &tree, arg, funcs: Vec::new(), budget: &mut budget };
        compiler.function(&main, true)
    });
    match compiled {
        Ok(proto) => Ok(Program {
            proto: Arc::new(proto),
            source: name.into(),
            work: before - budget.left(),
            memory: budget.used(),
        }),
        Err(Refusal::Dead) => Err(dead(&budget)),
        Err(Refusal::Syntax(SyntaxError { text, near, line })) => {
            let mut out = [name, format!(":{line}: {text}").as_bytes()].concat();
            if let Some(near) = near {
                out.extend_from_slice(b" near '");
                out.extend_from_slice(&near);
                out.push(b'\'');
            }
            Err(CompileError::Syntax(out))
        }
    }
}

#[derive(Debug)]
struct Local {
    name: NameId,
    register: u8,
    /// Its place among the names for error texts.
    noted: usize,
    is_arg: bool,
}

#[derive(Debug)]
struct Block {
    locals: usize,
    breaks: Vec<usize>,
    is_loop: bool,
    /// An inner function takes a variable of it.
    captured: bool,
}

#[derive(Debug, Default)]
struct Func {
    proto: Proto,
    constants: BTreeMap<(u8, Arc<[u8]>), u32>,
    locals: Vec<Local>,
    blocks: Vec<Block>,
    free: u16,
    captured: Vec<NameId>,
    line: u32,
    first_line: u32,
    uses_arg: bool,
    uses_dots: bool,
}

struct Compiler<'t, 'b> {
    tree: &'t Tree,
    /// The name `arg`, if the source has it.
    arg: Option<NameId>,
    funcs: Vec<Func>,
    budget: &'b mut Budget,
}

type Compiled<T> = Result<T, Refusal>;

enum Variable {
    Local(u8),
    Upvalue(u8),
    Global,
}

impl<'t> Compiler<'t, '_> {
    fn f(&mut self) -> &mut Func {
        let last = self.funcs.len() - 1;
        &mut self.funcs[last]
    }

    fn expr(&self, id: ExprId) -> (&'t Expr, u32) {
        let (expr, line) = &self.tree.exprs[id as usize];
        (expr, *line)
    }

    fn fail<T>(&mut self, text: String) -> Compiled<T> {
        Err(SyntaxError { text, near: None, line: self.f().line }.into())
    }

    fn emit(&mut self, op: Op) -> usize {
        let f = self.f();
        f.proto.code.push(op);
        f.proto.lines.push(f.line);
        f.proto.code.len() - 1
    }

    fn here(&mut self) -> usize {
        self.f().proto.code.len()
    }

    fn patch(&mut self, at: usize, target: usize) {
        let offset = target as i32 - (at as i32 + 1);
        match &mut self.f().proto.code[at] {
            Op::Jump { to }
            | Op::Test { to, .. }
            | Op::ForPrepare { to, .. }
            | Op::ForLoop { to, .. }
            | Op::ForNext { to, .. } => {
                *to = offset;
            }
            _ => {}
        }
    }

    fn patch_here(&mut self, list: Vec<usize>) {
        let here = self.here();
        list.into_iter().for_each(|at| self.patch(at, here));
    }

    fn reserve(&mut self, n: u16) -> Compiled<u8> {
        let f = self.f();
        let first = f.free;
        f.free += n;
        if f.free > MAX_REGISTERS {
            return self.fail("function or expression too complex".into());
        }
        f.proto.registers = f.proto.registers.max(f.free as u8);
        Ok(first as u8)
    }

    fn free_to(&mut self, register: u16) {
        self.f().free = register;
    }

    fn constant(&mut self, constant: Constant) -> Compiled<u32> {
        let key = match &constant {
            Constant::Nil => (0, Arc::default()),
            Constant::Bool(b) => (1, Arc::from([u8::from(*b)])),
            Constant::Number(x) => (2, Arc::from(x.to_bits().to_le_bytes())),
            Constant::Text(text) => (3, text.clone()),
        };
        let f = self.f();
        if let Some(k) = f.constants.get(&key) {
            return Ok(*k);
        }
        let k = f.proto.constants.len();
        if k >= MAX_CONSTANTS {
            return self.fail("constant table overflow".into());
        }
        f.proto.constants.push(constant);
        f.constants.insert(key, k as u32);
        Ok(k as u32)
    }

    fn text_constant(&mut self, name: NameId) -> Compiled<u32> {
        let text = self.tree.names[name as usize].clone();
        self.constant(Constant::Text(text))
    }

    // Variables.

    fn declare(&mut self, name: NameId, register: u8) -> Compiled<()> {
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

    fn open_block(&mut self, is_loop: bool) {
        let locals = self.f().locals.len();
        self.f().blocks.push(Block { locals, breaks: Vec::new(), is_loop, captured: false });
    }

    /// Ends a block: its variables go, and are closed if an inner function has them.
    fn close_block(&mut self) -> Vec<usize> {
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

    fn variable(&mut self, name: NameId) -> Compiled<Variable> {
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

    // Functions and blocks.

    fn function(&mut self, function: &Function, is_main: bool) -> Compiled<Proto> {
        self.funcs.push(Func { line: function.line, first_line: function.line, ..Func::default() });
        self.f().proto.is_vararg = function.is_vararg;
        self.f().proto.params = function.params.len().min(255) as u8;
        self.open_block(false);
        for name in &function.params {
            let register = self.reserve(1)?;
            self.declare(*name, register)?;
        }
        let mut arg = None;
        if function.is_vararg
            && !is_main
            && let Some(name) = self.arg
        {
            let register = self.reserve(1)?;
            self.declare(name, register)?;
            if let Some(local) = self.f().locals.last_mut() {
                local.is_arg = true;
            }
            self.emit(Op::LoadNil { a: register, n: 1 });
            arg = Some(register);
        }
        self.block(function.body)?;
        self.f().line = function.last_line;
        self.emit(Op::Return { a: 0, count: 1 });
        self.close_block();
        let Some(f) = self.funcs.pop() else { return Ok(Proto::default()) };
        let mut proto = f.proto;
        if let Some(a) = arg
            && f.uses_arg
            && !f.uses_dots
        {
            proto.code[0] = Op::ArgTable { a };
        }
        proto.registers = proto.registers.max(2);
        Ok(proto)
    }

    fn block(&mut self, block: BlockId) -> Compiled<()> {
        let tree = self.tree;
        for (stat, line) in &tree.blocks[block as usize] {
            self.f().line = *line;
            self.statement(stat)?;
            // Between statements only variables are in registers: what a loop keeps lies below its variable.
            let f = self.f();
            f.free = f.locals.last().map_or(0, |local| u16::from(local.register) + 1);
        }
        Ok(())
    }

    fn scoped(&mut self, block: BlockId) -> Compiled<()> {
        self.open_block(false);
        self.block(block)?;
        self.close_block();
        Ok(())
    }

    fn statement(&mut self, stat: &Stat) -> Compiled<()> {
        match stat {
            Stat::Expr(id) => {
                let base = self.f().free;
                self.call(*id, 1)?;
                self.free_to(base);
            }
            Stat::Local(names, values) => {
                let first = self.f().free;
                self.adjust(values, names.len())?;
                for (i, name) in names.iter().enumerate() {
                    self.declare(*name, first as u8 + i as u8)?;
                }
            }
            Stat::LocalFunction(name, function) => {
                let register = self.reserve(1)?;
                self.declare(*name, register)?;
                self.expr_to(*function, register)?;
            }
            Stat::Assign(targets, values) => self.assign(targets, values)?,
            Stat::Do(block) => self.scoped(*block)?,
            Stat::While(condition, block) => {
                let start = self.here();
                let exits = self.jump_if(*condition, false)?;
                self.open_block(true);
                self.block(*block)?;
                let breaks = self.close_block();
                let back = self.emit(Op::Jump { to: 0 });
                self.patch(back, start);
                self.patch_here(exits);
                self.patch_here(breaks);
            }
            Stat::Repeat(block, condition) => {
                let start = self.here();
                self.open_block(true);
                self.open_block(false);
                self.block(*block)?;
                let again = self.jump_if(*condition, false)?;
                let captured = self.f().blocks.last().is_some_and(|b| b.captured);
                if captured {
                    // Both ways out of the body close its variables.
                    let first = self.f().blocks.last().map_or(0, |b| b.locals);
                    let register = self.f().locals.get(first).map_or(0, |local| local.register);
                    self.close_block();
                    let out = self.emit(Op::Jump { to: 0 });
                    self.patch_here(again);
                    self.emit(Op::Close { a: register });
                    let back = self.emit(Op::Jump { to: 0 });
                    self.patch(back, start);
                    self.patch_here(vec![out]);
                } else {
                    again.into_iter().for_each(|at| self.patch(at, start));
                    self.close_block();
                }
                let breaks = self.close_block();
                self.patch_here(breaks);
            }
            Stat::If(arms, otherwise) => {
                let mut ends = Vec::new();
                for (i, (condition, block)) in arms.iter().enumerate() {
                    let next = self.jump_if(*condition, false)?;
                    self.scoped(*block)?;
                    if i + 1 < arms.len() || otherwise.is_some() {
                        ends.push(self.emit(Op::Jump { to: 0 }));
                    }
                    self.patch_here(next);
                }
                if let Some(block) = otherwise {
                    self.scoped(*block)?;
                }
                self.patch_here(ends);
            }
            Stat::For(name, from, to, step, block) => {
                let base = self.reserve(3)?;
                self.expr_to(*from, base)?;
                self.expr_to(*to, base + 1)?;
                match step {
                    Some(step) => self.expr_to(*step, base + 2)?,
                    None => {
                        let k = self.constant(Constant::Number(1.0))?;
                        self.emit(Op::LoadK { a: base + 2, k });
                    }
                }
                let line = self.f().line;
                let prepare = self.emit(Op::ForPrepare { a: base, to: 0 });
                self.open_block(true);
                let variable = self.reserve(1)?;
                self.declare(*name, variable)?;
                self.block(*block)?;
                let breaks = self.close_block();
                self.f().line = line;
                let here = self.here();
                self.patch(prepare, here);
                let back = self.emit(Op::ForLoop { a: base, to: 0 });
                self.patch(back, prepare + 1);
                self.patch_here(breaks);
                self.free_to(u16::from(base));
            }
            Stat::ForIn(names, values, block) => {
                let base = self.f().free;
                self.adjust(values, 3)?;
                let base = base as u8;
                let line = self.f().line;
                let start = self.emit(Op::Jump { to: 0 });
                self.open_block(true);
                let first = self.reserve(names.len().clamp(3, 1000) as u16)?;
                self.free_to(u16::from(first) + names.len() as u16);
                for (i, name) in names.iter().enumerate() {
                    self.declare(*name, first + i as u8)?;
                }
                self.block(*block)?;
                let breaks = self.close_block();
                self.f().line = line;
                self.patch_here(vec![start]);
                self.emit(Op::ForCall { a: base, n: names.len().min(250) as u8 });
                let back = self.emit(Op::ForNext { a: base, to: 0 });
                self.patch(back, start + 1);
                self.patch_here(breaks);
                self.free_to(u16::from(base));
            }
            Stat::Return(values) => self.give(values)?,
            Stat::Break => {
                let f = self.f();
                let mut captured = false;
                let mut first = f.locals.len();
                let mut at = None;
                for (i, block) in f.blocks.iter().enumerate().rev() {
                    captured |= block.captured;
                    first = block.locals;
                    if block.is_loop {
                        at = Some(i);
                        break;
                    }
                }
                let register = f.locals.get(first).map(|local| local.register);
                if let (true, Some(a)) = (captured, register) {
                    self.emit(Op::Close { a });
                }
                let jump = self.emit(Op::Jump { to: 0 });
                if let Some(at) = at {
                    self.f().blocks[at].breaks.push(jump);
                }
            }
        }
        Ok(())
    }

    fn give(&mut self, values: &[ExprId]) -> Compiled<()> {
        let base = self.f().free;
        if let [one] = values {
            let (expr, line) = self.expr(*one);
            match expr {
                Expr::Call(..) | Expr::Method(..) => {
                    self.call(*one, 0)?;
                    let last = self.here() - 1;
                    if let Op::Call { a, args, .. } = self.f().proto.code[last] {
                        self.f().proto.code[last] = Op::TailCall { a, args };
                    }
                    self.emit(Op::Return { a: base as u8, count: 0 });
                }
                Expr::Vararg => {
                    self.f().uses_dots = true;
                    let a = self.reserve(1)?;
                    self.emit(Op::Vararg { a, n: 0 });
                    self.emit(Op::Return { a, count: 0 });
                }
                _ => {
                    let _ = line;
                    let a = self.any(*one)?;
                    self.emit(Op::Return { a, count: 2 });
                }
            }
        } else {
            let open = self.list(values)?;
            let count = if open { 0 } else { values.len() as u16 + 1 };
            self.emit(Op::Return { a: base as u8, count });
        }
        self.free_to(base);
        Ok(())
    }

    /// Puts values into registers one after another. Says whether the last stands for all that it gives.
    fn list(&mut self, values: &[ExprId]) -> Compiled<bool> {
        let Some((last, rest)) = values.split_last() else { return Ok(false) };
        for value in rest {
            let register = self.reserve(1)?;
            self.expr_to(*value, register)?;
        }
        match self.expr(*last).0 {
            Expr::Call(..) | Expr::Method(..) => {
                self.call(*last, 0)?;
                Ok(true)
            }
            Expr::Vararg => {
                self.f().uses_dots = true;
                let a = self.reserve(1)?;
                self.emit(Op::Vararg { a, n: 0 });
                Ok(true)
            }
            _ => {
                let register = self.reserve(1)?;
                self.expr_to(*last, register)?;
                Ok(false)
            }
        }
    }

    /// Puts exactly so many values into registers one after another.
    fn adjust(&mut self, values: &[ExprId], count: usize) -> Compiled<()> {
        let base = self.f().free;
        if count > usize::from(MAX_REGISTERS) {
            return self.fail("function or expression too complex".into());
        }
        for (i, value) in values.iter().enumerate() {
            let is_last = i + 1 == values.len();
            if is_last && count > i {
                let wanted = count - i;
                match self.expr(*value).0 {
                    Expr::Call(..) | Expr::Method(..) => {
                        self.call(*value, wanted as u16 + 1)?;
                        self.free_to(base + i as u16);
                        self.reserve(wanted as u16)?;
                        return Ok(());
                    }
                    Expr::Vararg => {
                        self.f().uses_dots = true;
                        let a = self.reserve(wanted as u16)?;
                        self.emit(Op::Vararg { a, n: wanted as u16 + 1 });
                        return Ok(());
                    }
                    _ => {}
                }
            }
            let register = self.reserve(1)?;
            self.expr_to(*value, register)?;
            if i >= count {
                self.free_to(u16::from(register));
            }
        }
        if values.len() < count {
            let missing = (count - values.len()) as u16;
            let a = self.reserve(missing)?;
            self.emit(Op::LoadNil { a, n: missing as u8 });
        }
        self.free_to(base + count as u16);
        Ok(())
    }

    fn assign(&mut self, targets: &[ExprId], values: &[ExprId]) -> Compiled<()> {
        let base = self.f().free;
        if let ([target], [value]) = (targets, values) {
            let (expr, line) = self.expr(*target);
            match expr {
                Expr::Name(name) => match self.variable(*name)? {
                    Variable::Local(register) => self.expr_to(*value, register)?,
                    other => {
                        let a = self.any(*value)?;
                        self.store_variable(other, *name, a)?;
                    }
                },
                Expr::Index(table, key) => {
                    let a = self.any(*table)?;
                    let b = self.operand(*key)?;
                    let c = self.operand(*value)?;
                    self.f().line = line;
                    self.emit(Op::SetTable { a, b, c });
                }
                _ => {}
            }
            self.free_to(base);
            return Ok(());
        }
        // What is assigned to is found first, in registers of its own.
        let mut places = Vec::new();
        for target in targets {
            places.push(match self.expr(*target).0 {
                Expr::Index(table, key) => {
                    let a = self.reserve(1)?;
                    self.expr_to(*table, a)?;
                    let b = match self.as_constant(*key)? {
                        Some(k) => k,
                        None => {
                            let b = self.reserve(1)?;
                            self.expr_to(*key, b)?;
                            u16::from(b)
                        }
                    };
                    Some((a, b))
                }
                _ => None,
            });
        }
        let first = self.f().free as u8;
        self.adjust(values, targets.len())?;
        for (i, (target, place)) in targets.iter().zip(places).enumerate().rev() {
            let value = first + i as u8;
            match (self.expr(*target).0, place) {
                (_, Some((a, b))) => {
                    self.emit(Op::SetTable { a, b, c: u16::from(value) });
                }
                (Expr::Name(name), None) => match self.variable(*name)? {
                    Variable::Local(a) => {
                        self.emit(Op::Move { a, b: value });
                    }
                    other => self.store_variable(other, *name, value)?,
                },
                _ => {}
            }
        }
        self.free_to(base);
        Ok(())
    }

    fn store_variable(&mut self, variable: Variable, name: NameId, a: u8) -> Compiled<()> {
        match variable {
            Variable::Upvalue(u) => {
                self.emit(Op::SetUpvalue { a, u });
            }
            _ => {
                let k = self.text_constant(name)?;
                self.emit(Op::SetGlobal { a, k });
            }
        }
        Ok(())
    }

    // Expressions.

    fn as_constant(&mut self, id: ExprId) -> Compiled<Option<Operand>> {
        let constant = match self.expr(id).0 {
            Expr::Nil => Constant::Nil,
            Expr::True => Constant::Bool(true),
            Expr::False => Constant::Bool(false),
            Expr::Number(x) => Constant::Number(*x),
            Expr::Text(text) => Constant::Text(self.tree.names[*text as usize].clone()),
            _ => return Ok(None),
        };
        let k = self.constant(constant)?;
        Ok(if k < u32::from(CONSTANT) { Some(k as u16 | CONSTANT) } else { None })
    }

    /// A value as an operand: a constant, a variable's register, or a fresh one.
    fn operand(&mut self, id: ExprId) -> Compiled<Operand> {
        match self.as_constant(id)? {
            Some(k) => Ok(k),
            None => self.any(id).map(u16::from),
        }
    }

    /// A value in a register: the variable's own, or a fresh one.
    fn any(&mut self, id: ExprId) -> Compiled<u8> {
        if let Expr::Name(name) = self.expr(id).0
            && let Variable::Local(register) = self.variable(*name)?
        {
            return Ok(register);
        }
        let register = self.reserve(1)?;
        self.expr_to(id, register)?;
        Ok(register)
    }

    /// A value into a register. A variable's register is written last, as the expression may read the variable.
    fn expr_to(&mut self, id: ExprId, a: u8) -> Compiled<()> {
        let base = self.f().free;
        let (expr, line) = self.expr(id);
        match expr {
            Expr::Nil => {
                self.emit(Op::LoadNil { a, n: 1 });
            }
            Expr::True | Expr::False => {
                self.emit(Op::LoadBool { a, value: matches!(expr, Expr::True) });
            }
            Expr::Number(x) => {
                let k = self.constant(Constant::Number(*x))?;
                self.emit(Op::LoadK { a, k });
            }
            Expr::Text(text) => {
                let k = self.text_constant(*text)?;
                self.emit(Op::LoadK { a, k });
            }
            Expr::Vararg => {
                self.f().uses_dots = true;
                self.emit(Op::Vararg { a, n: 2 });
            }
            Expr::Name(name) => match self.variable(*name)? {
                Variable::Local(b) if a == b => {}
                Variable::Local(b) => {
                    self.emit(Op::Move { a, b });
                }
                Variable::Upvalue(u) => {
                    self.emit(Op::GetUpvalue { a, u });
                }
                Variable::Global => {
                    let k = self.text_constant(*name)?;
                    self.emit(Op::GetGlobal { a, k });
                }
            },
            Expr::Function(function) => {
                let proto = self.function(function, false)?;
                let f = self.f();
                f.proto.protos.push(Arc::new(proto));
                let p = f.proto.protos.len() as u32 - 1;
                self.emit(Op::Closure { a, p });
            }
            Expr::Index(table, key) => {
                let b = self.any(*table)?;
                let is_text = matches!(self.expr(*key).0, Expr::Text(_));
                let c = self.operand(*key)?;
                self.f().line = line;
                match c & CONSTANT != 0 && is_text {
                    true => self.emit(Op::GetField { a, b, k: c & !CONSTANT }),
                    false => self.emit(Op::GetTable { a, b, c }),
                };
            }
            Expr::Call(..) | Expr::Method(..) => {
                if u16::from(a) + 1 == base && !self.is_variable(a) {
                    self.free_to(u16::from(a));
                }
                let at = self.call(id, 2)?;
                if at != a {
                    self.emit(Op::Move { a, b: at });
                }
            }
            Expr::Paren(inner) => self.expr_to(*inner, a)?,
            Expr::Unary(Unary::Not, _) => self.condition_to(id, a)?,
            Expr::Unary(operator, operand) => {
                let b = self.any(*operand)?;
                self.f().line = line;
                self.emit(match operator {
                    Unary::Minus => Op::Minus { a, b },
                    Unary::Len => Op::Len { a, b },
                    Unary::Not => Op::Not { a, b },
                });
            }
            Expr::Binary(..) => self.binary_to(id, a)?,
            Expr::Table(fields) => self.table_to(fields, line, a)?,
        }
        self.free_to(base);
        Ok(())
    }

    fn is_variable(&mut self, register: u8) -> bool {
        let f = self.f();
        f.locals.last().is_some_and(|local| register <= local.register)
    }

    /// Operators, from the leftmost operand on, without recursion to the left.
    fn binary_to(&mut self, id: ExprId, a: u8) -> Compiled<()> {
        let mut spine = Vec::new();
        let mut left = id;
        while let (Expr::Binary(operator, l, r), line) = self.expr(left) {
            if *operator == Binary::Concat {
                break;
            }
            spine.push((*operator, left, *r, line));
            left = *l;
        }
        let base = self.f().free;
        if spine.is_empty() {
            return self.concat_to(left, a);
        }
        // Until the last operator the result is in a register of its own.
        let work = if self.is_variable(a) { self.reserve(1)? } else { a };
        let mut acc: Option<ExprId> = Some(left);
        for (i, (operator, node, right, line)) in spine.iter().enumerate().rev() {
            let target = if i == 0 { a } else { work };
            let free = self.f().free;
            match operator {
                Binary::And | Binary::Or => {
                    if let Some(left) = acc {
                        self.expr_to(left, work)?;
                    }
                    let when = *operator == Binary::Or;
                    let skip = self.emit(Op::Test { a: work, when, to: 0 });
                    self.expr_to(*right, work)?;
                    self.patch_here(vec![skip]);
                    if target != work {
                        self.emit(Op::Move { a: target, b: work });
                    }
                }
                Binary::Eq | Binary::Ne | Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge => {
                    let jumps = match acc {
                        Some(_) => self.compare(*node, None, false)?,
                        None => self.compare(*node, Some(work), false)?,
                    };
                    self.boolean(jumps, target);
                }
                operator => {
                    let b = match acc {
                        Some(left) => self.operand(left)?,
                        None => u16::from(work),
                    };
                    let c = self.operand(*right)?;
                    self.f().line = *line;
                    let a = target;
                    self.emit(match operator {
                        Binary::Add => Op::Add { a, b, c },
                        Binary::Sub => Op::Sub { a, b, c },
                        Binary::Mul => Op::Mul { a, b, c },
                        Binary::Div => Op::Div { a, b, c },
                        Binary::Mod => Op::Mod { a, b, c },
                        _ => Op::Pow { a, b, c },
                    });
                }
            }
            self.free_to(free);
            acc = None;
        }
        self.free_to(base);
        Ok(())
    }

    fn concat_to(&mut self, id: ExprId, a: u8) -> Compiled<()> {
        let first = self.f().free as u8;
        let mut next = id;
        let mut at_line = 0;
        loop {
            let (expr, line) = self.expr(next);
            let register = self.reserve(1)?;
            if let Expr::Binary(Binary::Concat, left, right) = expr {
                at_line = if at_line == 0 { line } else { at_line };
                self.expr_to(*left, register)?;
                next = *right;
            } else {
                self.expr_to(next, register)?;
                self.f().line = at_line;
                self.emit(Op::Concat { a, b: first, c: register });
                self.free_to(u16::from(first));
                return Ok(());
            }
        }
    }

    /// The value of a condition.
    fn condition_to(&mut self, id: ExprId, a: u8) -> Compiled<()> {
        if let Expr::Unary(Unary::Not, operand) = self.expr(id).0
            && !self.is_condition(*operand)
        {
            let b = self.any(*operand)?;
            self.emit(Op::Not { a, b });
            return Ok(());
        }
        let jumps = self.jump_if(id, false)?;
        self.boolean(jumps, a);
        Ok(())
    }

    fn is_condition(&self, id: ExprId) -> bool {
        matches!(
            self.expr(id).0,
            Expr::Unary(Unary::Not, _)
                | Expr::Binary(
                    Binary::Eq | Binary::Ne | Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge,
                    ..
                )
        )
    }

    /// True, or false if one of the jumps was taken.
    fn boolean(&mut self, jumps: Vec<usize>, a: u8) {
        self.emit(Op::LoadBool { a, value: true });
        let end = self.emit(Op::Jump { to: 0 });
        self.patch_here(jumps);
        self.emit(Op::LoadBool { a, value: false });
        self.patch_here(vec![end]);
    }

    /// Jumps if a condition is so; else goes on. Answers the jumps.
    fn jump_if(&mut self, id: ExprId, when: bool) -> Compiled<Vec<usize>> {
        let (expr, _) = self.expr(id);
        match expr {
            Expr::Paren(inner) => self.jump_if(*inner, when),
            Expr::Unary(Unary::Not, operand) => self.jump_if(*operand, !when),
            Expr::True | Expr::Number(_) | Expr::Text(_) if !when => Ok(Vec::new()),
            Expr::Binary(operator @ (Binary::And | Binary::Or), ..) => {
                // Operands of one operator, without recursion to the left.
                let mut operands = Vec::new();
                let mut left = id;
                while let Expr::Binary(other, l, r) = self.expr(left).0
                    && other == operator
                {
                    operands.push(*r);
                    left = *l;
                }
                operands.push(left);
                let decides = *operator == Binary::Or;
                let mut jumps = Vec::new();
                if decides == when {
                    for operand in operands.into_iter().rev() {
                        jumps.extend(self.jump_if(operand, when)?);
                    }
                    return Ok(jumps);
                }
                let mut out = Vec::new();
                while let Some(operand) = operands.pop() {
                    match operands.is_empty() {
                        true => jumps.extend(self.jump_if(operand, when)?),
                        false => out.extend(self.jump_if(operand, decides)?),
                    }
                }
                self.patch_here(out);
                Ok(jumps)
            }
            Expr::Binary(Binary::Eq | Binary::Ne | Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge, ..) => {
                self.compare(id, None, when)
            }
            _ => {
                let base = self.f().free;
                let a = self.any(id)?;
                self.free_to(base);
                Ok(vec![self.emit(Op::Test { a, when, to: 0 })])
            }
        }
    }

    /// Jumps if a comparison is so. Its left side may be in a register already.
    fn compare(&mut self, id: ExprId, left: Option<u8>, when: bool) -> Compiled<Vec<usize>> {
        let base = self.f().free;
        let (Expr::Binary(operator, l, r), line) = self.expr(id) else { return Ok(Vec::new()) };
        let deep = matches!(self.expr(*l).0, Expr::Binary(..));
        let b = match left {
            Some(register) => u16::from(register),
            // A chain to the left is not followed by recursion.
            None if deep => {
                let register = self.reserve(1)?;
                self.binary_to(*l, register)?;
                u16::from(register)
            }
            None => self.operand(*l)?,
        };
        let c = self.operand(*r)?;
        self.f().line = line;
        self.emit(match operator {
            Binary::Eq => Op::Eq { when, b, c },
            Binary::Ne => Op::Eq { when: !when, b, c },
            Binary::Lt => Op::Lt { when, b, c },
            Binary::Le => Op::Le { when, b, c },
            Binary::Gt => Op::Lt { when, b: c, c: b },
            _ => Op::Le { when, b: c, c: b },
        });
        self.free_to(base);
        Ok(vec![self.emit(Op::Jump { to: 0 })])
    }

    fn table_to(&mut self, fields: &[Field], line: u32, a: u8) -> Compiled<()> {
        let base = self.f().free;
        let items = fields.iter().filter(|f| matches!(f, Field::Item(_))).count();
        let in_place = u16::from(a) + 1 == base && !self.is_variable(a);
        let t = if in_place { a } else { self.reserve(1)? };
        self.emit(Op::NewTable {
            a: t,
            items: items.min(1 << 15) as u16,
            entries: (fields.len() - items).min(1 << 15) as u16,
        });
        let (mut pending, mut set) = (0, 0);
        for (i, field) in fields.iter().enumerate() {
            match field {
                Field::Pair(key, value) => {
                    let free = self.f().free;
                    let b = self.operand(*key)?;
                    let c = self.operand(*value)?;
                    self.emit(Op::SetTable { a: t, b, c });
                    self.free_to(free);
                }
                Field::Item(value) => {
                    let is_last = i + 1 == fields.len();
                    if is_last
                        && matches!(self.expr(*value).0, Expr::Call(..) | Expr::Method(..) | Expr::Vararg)
                    {
                        self.list(&[*value])?;
                        self.emit(Op::SetList { a: t, n: 0, first: set as u32 + 1 });
                        self.free_to(u16::from(t) + 1);
                        pending = 0;
                        continue;
                    }
                    let register = self.reserve(1)?;
                    self.expr_to(*value, register)?;
                    pending += 1;
                    if pending == ITEMS_AT_ONCE {
                        self.emit(Op::SetList { a: t, n: pending as u16 + 1, first: set as u32 + 1 });
                        set += pending;
                        pending = 0;
                        self.free_to(u16::from(t) + 1);
                    }
                }
            }
        }
        if pending > 0 {
            self.emit(Op::SetList { a: t, n: pending as u16 + 1, first: set as u32 + 1 });
        }
        self.f().line = line;
        self.free_to(base);
        if t != a {
            self.emit(Op::Move { a, b: t });
        }
        Ok(())
    }

    /// A call that keeps `results - 1` values, or all for 0. Answers the register of the first.
    fn call(&mut self, id: ExprId, results: u16) -> Compiled<u8> {
        let base = self.reserve(1)?;
        let (expr, line) = self.expr(id);
        let (args, extra) = match expr {
            Expr::Call(function, args) => {
                self.expr_to(*function, base)?;
                (args, 0)
            }
            Expr::Method(object, name, args) => {
                self.reserve(1)?;
                let free = self.f().free;
                let b = self.any(*object)?;
                let k = self.text_constant(*name)?;
                let c = if k < u32::from(CONSTANT) {
                    k as u16 | CONSTANT
                } else {
                    let register = self.reserve(1)?;
                    self.emit(Op::LoadK { a: register, k });
                    u16::from(register)
                };
                self.f().line = line;
                self.emit(Op::Method { a: base, b, c });
                self.free_to(free);
                (args, 1)
            }
            _ => return Ok(base),
        };
        let open = self.list(args)?;
        let count = if open { 0 } else { args.len() as u16 + extra + 1 };
        self.f().line = line;
        self.emit(Op::Call { a: base, args: count, results });
        self.free_to(u16::from(base) + 1);
        Ok(base)
    }
}
