//! From a tree to instructions for a machine of registers.

mod conditions;
mod expressions;
mod statements;
mod variables;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ast::{Expr, ExprId, NameId, Tree};
use crate::budget::{Budget, Death};
use crate::lexer::SyntaxError;
use crate::op::{Constant, Op, Proto};
use crate::parser::{Parser, Refusal};

const MAX_LOCALS: usize = 200;
const MAX_UPVALUES: usize = 60;
const MAX_REGISTERS: u16 = 250;
const MAX_CONSTANTS: usize = 1 << 18;
/// Items of a constructor that are set at once.
const ITEMS_AT_ONCE: usize = 50;
/// Units of work that a byte of source costs.
const UNITS_PER_BYTE: u64 = 2;

/// A compiled source, with the cost of compiling it, which every run of it is charged.
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
    /// The source is no Lua: the error, with the name of the source and the line.
    Syntax(Vec<u8>),
    /// The source is too large for the budget.
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

    fn emit(&mut self, op: Op) {
        let f = self.f();
        f.proto.code.push(op);
        f.proto.lines.push(f.line);
    }

    /// Emits a jump, whose target is [patched](Self::patch) in later; answers its place.
    fn emit_jump(&mut self, op: Op) -> usize {
        self.emit(op);
        self.here() - 1
    }

    fn jump(&mut self) -> usize {
        self.emit_jump(Op::Jump { to: 0 })
    }

    fn jump_back(&mut self, op: Op, target: usize) {
        let at = self.emit_jump(op);
        self.patch(at, target);
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
            | Op::ForNext { to, .. } => *to = offset,
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
}
