//! Expressions: values into registers.

use std::sync::Arc;

use super::variables::Variable;
use super::{Compiled, Compiler, ITEMS_AT_ONCE, MAX_REGISTERS};
use crate::ast::{Binary, Expr, ExprId, Field, Unary};
use crate::op::{CONSTANT, Constant, Op, Operand};

impl Compiler<'_, '_> {
    /// Puts values into registers one after another. Says whether the last stands for all that it gives.
    pub(super) fn list(&mut self, values: &[ExprId]) -> Compiled<bool> {
        let Some((last, rest)) = values.split_last() else { return Ok(false) };
        for value in rest {
            self.next(*value)?;
        }
        if self.several(*last, 0)? {
            return Ok(true);
        }
        self.next(*last)?;
        Ok(false)
    }

    /// Puts a value into the next register.
    pub(super) fn next(&mut self, id: ExprId) -> Compiled<u8> {
        let register = self.reserve(1)?;
        self.expr_to(id, register)?;
        Ok(register)
    }

    pub(super) fn gives_several(&self, id: ExprId) -> bool {
        matches!(self.expr(id).0, Expr::Call(..) | Expr::Method(..) | Expr::Vararg)
    }

    /// Puts the values of a call or of `...` into registers: `results - 1` of them, or all for 0. Answers false for an
    /// expression that gives one value, of which nothing is done.
    fn several(&mut self, id: ExprId, results: u16) -> Compiled<bool> {
        match self.expr(id).0 {
            Expr::Vararg => {
                self.f().uses_dots = true;
                let a = self.reserve(1)?;
                self.emit(Op::Vararg { a, n: results });
            }
            Expr::Call(..) | Expr::Method(..) => _ = self.call(id, results)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Puts exactly so many values into registers one after another.
    pub(super) fn adjust(&mut self, values: &[ExprId], count: usize) -> Compiled<()> {
        let base = self.f().free;
        if count > usize::from(MAX_REGISTERS) {
            return self.fail("function or expression too complex".into());
        }
        for (i, value) in values.iter().enumerate() {
            let is_last = i + 1 == values.len();
            let wanted = count.saturating_sub(i) as u16;
            if is_last && wanted > 0 && self.several(*value, wanted + 1)? {
                self.free_to(base + i as u16);
                self.reserve(wanted)?;
                return Ok(());
            }
            let register = self.next(*value)?;
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

    pub(super) fn as_constant(&mut self, id: ExprId) -> Compiled<Option<Operand>> {
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
    pub(super) fn operand(&mut self, id: ExprId) -> Compiled<Operand> {
        match self.as_constant(id)? {
            Some(k) => Ok(k),
            None => self.any(id).map(u16::from),
        }
    }

    /// A value in a register: the variable's own, or a fresh one.
    pub(super) fn any(&mut self, id: ExprId) -> Compiled<u8> {
        if let Expr::Name(name) = self.expr(id).0
            && let Variable::Local(register) = self.variable(*name)?
        {
            return Ok(register);
        }
        self.next(id)
    }

    /// A value into a register. A variable's register is written last, as the expression may read the variable.
    pub(super) fn expr_to(&mut self, id: ExprId, a: u8) -> Compiled<()> {
        let base = self.f().free;
        let (expr, line) = self.expr(id);
        match expr {
            Expr::Nil => self.emit(Op::LoadNil { a, n: 1 }),
            Expr::True | Expr::False => self.emit(Op::LoadBool { a, value: matches!(expr, Expr::True) }),
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
                Variable::Local(b) => self.emit(Op::Move { a, b }),
                Variable::Upvalue(u) => self.emit(Op::GetUpvalue { a, u }),
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
                }
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
    pub(super) fn binary_to(&mut self, id: ExprId, a: u8) -> Compiled<()> {
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
                    let skip = self.emit_jump(Op::Test { a: work, when, to: 0 });
                    self.expr_to(*right, work)?;
                    self.patch_here(vec![skip]);
                    if target != work {
                        self.emit(Op::Move { a: target, b: work });
                    }
                }
                operator if operator.is_comparison() => {
                    let left = acc.is_none().then_some(work);
                    let jumps = self.compare(*node, left, false)?;
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
                    if i + 1 == fields.len() && self.several(*value, 0)? {
                        self.emit(Op::SetList { a: t, n: 0, first: set as u32 + 1 });
                        self.free_to(u16::from(t) + 1);
                        pending = 0;
                        continue;
                    }
                    self.next(*value)?;
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
    pub(super) fn call(&mut self, id: ExprId, results: u16) -> Compiled<u8> {
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
