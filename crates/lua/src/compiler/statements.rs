//! Functions, blocks and statements.

use super::variables::Variable;
use super::{Compiled, Compiler, Func};
use crate::ast::{BlockId, Expr, ExprId, Function, NameId, Stat};
use crate::op::{Constant, Op, Proto};

impl Compiler<'_, '_> {
    pub(super) fn function(&mut self, function: &Function, is_main: bool) -> Compiled<Proto> {
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
            Stat::While(condition, block) => self.while_loop(*condition, *block)?,
            Stat::Repeat(block, condition) => self.repeat_loop(*block, *condition)?,
            Stat::If(arms, otherwise) => self.branches(arms, *otherwise)?,
            Stat::For(name, from, to, step, block) => self.numeric_for(*name, [*from, *to], *step, *block)?,
            Stat::ForIn(names, values, block) => self.generic_for(names, values, *block)?,
            Stat::Return(values) => self.give(values)?,
            Stat::Break => self.break_loop(),
        }
        Ok(())
    }

    fn while_loop(&mut self, condition: ExprId, block: BlockId) -> Compiled<()> {
        let start = self.here();
        let exits = self.jump_if(condition, false)?;
        self.open_block(true);
        self.block(block)?;
        let breaks = self.close_block();
        self.jump_back(Op::Jump { to: 0 }, start);
        self.patch_here(exits);
        self.patch_here(breaks);
        Ok(())
    }

    fn repeat_loop(&mut self, block: BlockId, condition: ExprId) -> Compiled<()> {
        let start = self.here();
        self.open_block(true);
        self.open_block(false);
        self.block(block)?;
        let again = self.jump_if(condition, false)?;
        let captured = self.f().blocks.last().is_some_and(|b| b.captured);
        if captured {
            // Both ways out of the body close its variables.
            let first = self.f().blocks.last().map_or(0, |b| b.locals);
            let register = self.f().locals.get(first).map_or(0, |local| local.register);
            self.close_block();
            let out = self.jump();
            self.patch_here(again);
            self.emit(Op::Close { a: register });
            self.jump_back(Op::Jump { to: 0 }, start);
            self.patch_here(vec![out]);
        } else {
            again.into_iter().for_each(|at| self.patch(at, start));
            self.close_block();
        }
        let breaks = self.close_block();
        self.patch_here(breaks);
        Ok(())
    }

    fn branches(&mut self, arms: &[(ExprId, BlockId)], otherwise: Option<BlockId>) -> Compiled<()> {
        let mut ends = Vec::new();
        for (i, (condition, block)) in arms.iter().enumerate() {
            let next = self.jump_if(*condition, false)?;
            self.scoped(*block)?;
            if i + 1 < arms.len() || otherwise.is_some() {
                ends.push(self.jump());
            }
            self.patch_here(next);
        }
        if let Some(block) = otherwise {
            self.scoped(block)?;
        }
        self.patch_here(ends);
        Ok(())
    }

    fn numeric_for(
        &mut self,
        name: NameId,
        [from, to]: [ExprId; 2],
        step: Option<ExprId>,
        block: BlockId,
    ) -> Compiled<()> {
        let base = self.reserve(3)?;
        self.expr_to(from, base)?;
        self.expr_to(to, base + 1)?;
        match step {
            Some(step) => self.expr_to(step, base + 2)?,
            None => {
                let k = self.constant(Constant::Number(1.0))?;
                self.emit(Op::LoadK { a: base + 2, k });
            }
        }
        let line = self.f().line;
        let prepare = self.emit_jump(Op::ForPrepare { a: base, to: 0 });
        self.open_block(true);
        let variable = self.reserve(1)?;
        self.declare(name, variable)?;
        self.block(block)?;
        let breaks = self.close_block();
        self.f().line = line;
        self.patch_here(vec![prepare]);
        self.jump_back(Op::ForLoop { a: base, to: 0 }, prepare + 1);
        self.patch_here(breaks);
        self.free_to(u16::from(base));
        Ok(())
    }

    fn generic_for(&mut self, names: &[NameId], values: &[ExprId], block: BlockId) -> Compiled<()> {
        let base = self.f().free;
        self.adjust(values, 3)?;
        let base = base as u8;
        let line = self.f().line;
        let start = self.jump();
        self.open_block(true);
        let first = self.reserve(names.len().clamp(3, 1000) as u16)?;
        self.free_to(u16::from(first) + names.len() as u16);
        for (i, name) in names.iter().enumerate() {
            self.declare(*name, first + i as u8)?;
        }
        self.block(block)?;
        let breaks = self.close_block();
        self.f().line = line;
        self.patch_here(vec![start]);
        self.emit(Op::ForCall { a: base, n: names.len().min(250) as u8 });
        self.jump_back(Op::ForNext { a: base, to: 0 }, start + 1);
        self.patch_here(breaks);
        self.free_to(u16::from(base));
        Ok(())
    }

    fn break_loop(&mut self) {
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
        let jump = self.jump();
        if let Some(at) = at {
            self.f().blocks[at].breaks.push(jump);
        }
    }

    fn give(&mut self, values: &[ExprId]) -> Compiled<()> {
        let base = self.f().free;
        let (a, count) = match values {
            [one] if !self.gives_several(*one) => (self.any(*one)?, 2),
            _ => {
                let is_open = self.list(values)?;
                (base as u8, if is_open { 0 } else { values.len() as u16 + 1 })
            }
        };
        if let ([_], Some(last)) = (values, self.f().proto.code.last_mut())
            && let (Op::Call { a, args, .. }, 0) = (*last, count)
        {
            *last = Op::TailCall { a, args };
        }
        self.emit(Op::Return { a, count });
        self.free_to(base);
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
                    let a = self.next(*table)?;
                    let b = match self.as_constant(*key)? {
                        Some(k) => k,
                        None => u16::from(self.next(*key)?),
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
                (_, Some((a, b))) => self.emit(Op::SetTable { a, b, c: u16::from(value) }),
                (Expr::Name(name), None) => match self.variable(*name)? {
                    Variable::Local(a) => self.emit(Op::Move { a, b: value }),
                    other => self.store_variable(other, *name, value)?,
                },
                _ => {}
            }
        }
        self.free_to(base);
        Ok(())
    }
}
