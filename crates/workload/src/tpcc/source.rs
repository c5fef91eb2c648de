//! The next transaction, and its arguments (clauses 2.4.1 to 2.8.1).

use std::sync::Arc;

use ordain_model::{Abort, ArgsBuilder, Datum, OutcomeStatus, ProcedureId};

use super::delivery::{self, DELIVERY, DeliveryCall, MAX_CARRIER};
use super::load::Loader;
use super::new_order::{self, Line, NEW_ORDER, NewOrderCall};
use super::order_status::{ORDER_STATUS, OrderStatusCall};
use super::payment::{self, PAYMENT, PaymentCall, Who};
use super::random::{NuRand, last_name, uniform};
use super::schema::{ORDER_LINES, Prefix, Row};
use super::stock_level::{STOCK_LEVEL, StockLevelCall};
use super::{Kind, Parameters, Remote, Tpcc};
use crate::aggregate::{Aggregate, sums};
use crate::{Made, Source};
use ordain_model::Random;

/// One population of clients of several.
#[derive(Clone, Debug)]
pub struct Clients {
    parameters: Parameters,
    prefixes: Arc<[Prefix]>,
    loader: Loader,
    random: Random,
    /// The transaction made up last; none as long as it loads.
    made: Option<Transaction>,
    summary: Summary,
}

/// A transaction that was made up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transaction {
    /// Of [`new_order`].
    NewOrder(NewOrderCall),
    /// Of [`payment`].
    Payment(PaymentCall),
    /// Of [`super::order_status`].
    OrderStatus(OrderStatusCall),
    /// Of [`delivery`].
    Delivery(DeliveryCall),
    /// Of [`super::stock_level`].
    StockLevel(StockLevelCall),
}

sums! {
    /// The sums of a population's answers to transactions that committed.
    pub struct Summary {
        /// The lines of the orders.
        pub lines: u64,
        /// The payments, in cents.
        pub paid_cents: u64,
        /// The orders that were delivered.
        pub delivered: u64,
        /// The answers that are not what such a transaction answers, and the aborts without a reason.
        pub odd: u64,
        /// The NewOrders that were made up, whatever became of them.
        pub new_orders: u64,
        /// The NewOrders with an item that there is not.
        pub unused_items: u64,
    }
}

/// Payments in a hundred whose customer is of another warehouse, and order lines.
const REMOTE_PAYMENTS: f64 = 0.15;
const REMOTE_LINES: f64 = 0.01;
/// Orders of an item that there is not.
const UNUSED_ITEMS: f64 = 0.01;
/// Customers that are found by their last name.
const BY_NAME: f64 = 0.6;

impl Clients {
    /// Population `number` of `populations`.
    pub(super) fn new(workload: &Tpcc, seed: u64, number: usize, populations: usize) -> Clients {
        let Parameters { warehouses, scale, .. } = workload.parameters;
        Clients {
            parameters: workload.parameters,
            prefixes: workload.prefixes.clone(),
            loader: Loader::new(seed, scale, warehouses, number, populations),
            random: Random::stream(seed, number as u64),
            made: None,
            summary: Summary::default(),
        }
    }

    /// The transaction made up last: what another protocol's form of the workload plays.
    pub fn made(&self) -> Option<&Transaction> {
        self.made.as_ref()
    }

    fn kind(&mut self) -> Kind {
        let mut at = self.random.unit() * 100.0;
        for (kind, percent) in Kind::ALL.into_iter().zip(self.parameters.mix.percents()) {
            at -= percent;
            if at < 0.0 {
                return kind;
            }
        }
        // Rounding has carried it past the end: the last kind that there is at all.
        let percents = self.parameters.mix.percents();
        Kind::ALL.into_iter().zip(percents).rev().find(|(_, p)| *p > 0.0).map_or(Kind::NewOrder, |(k, _)| k)
    }

    fn warehouse(&mut self) -> u32 {
        uniform(&mut self.random, 1, self.parameters.warehouses)
    }

    fn district(&mut self) -> u8 {
        uniform(&mut self.random, 1, u32::from(self.parameters.scale.districts)) as u8
    }

    /// Another warehouse, if there is one; in another partition, if that is asked for and there is one.
    fn other_warehouse(&mut self, home: u32, elsewhere: bool) -> u32 {
        let Parameters { warehouses, partitions, .. } = self.parameters;
        if warehouses == 1 {
            return home;
        }
        loop {
            let other = uniform(&mut self.random, 1, warehouses);
            let same_partition = other as usize % partitions == home as usize % partitions;
            if other != home && !(elsewhere && partitions > 1 && same_partition) {
                return other;
            }
        }
    }

    fn customer(&mut self) -> u32 {
        NuRand::CUSTOMER.draw(&mut self.random, 1, self.parameters.scale.customers)
    }

    fn who(&mut self) -> Who {
        if self.random.unit() < BY_NAME {
            let names = self.parameters.scale.last_names();
            Who::Name(last_name(NuRand::LAST_NAME.draw(&mut self.random, 0, names - 1)).to_vec())
        } else {
            Who::Id(self.customer())
        }
    }

    fn new_order(&mut self, mut lines: Vec<Line>) -> NewOrderCall {
        let items = self.parameters.scale.items;
        let (warehouse, district, customer) = (self.warehouse(), self.district(), self.customer());
        let count = uniform(&mut self.random, ORDER_LINES.0, ORDER_LINES.1) as usize;
        lines.clear();
        for _ in 0..count {
            let item = NuRand::ITEM.draw(&mut self.random, 1, items);
            let remote = self.parameters.remote == Remote::Standard && self.random.unit() < REMOTE_LINES;
            let supply_warehouse = if remote { self.other_warehouse(warehouse, false) } else { warehouse };
            let quantity = uniform(&mut self.random, 1, 10) as u8;
            lines.push(Line { item, supply_warehouse, quantity });
        }
        if let Remote::Share(share) = self.parameters.remote
            && self.random.unit() < share
        {
            let second = self.other_warehouse(warehouse, true);
            let line = self.random.below(count as u64) as usize;
            lines[line].supply_warehouse = second;
        }
        if self.random.unit() < UNUSED_ITEMS
            && let Some(last) = lines.last_mut()
        {
            last.item = items + 1;
            self.summary.unused_items += 1;
        }
        self.summary.new_orders += 1;
        NewOrderCall { warehouse, district, customer, lines }
    }

    fn payment(&mut self) -> PaymentCall {
        let (warehouse, district) = (self.warehouse(), self.district());
        let (share, elsewhere) = match self.parameters.remote {
            Remote::Standard => (REMOTE_PAYMENTS, false),
            Remote::Share(share) => (share, true),
        };
        let (customer_warehouse, customer_district) = if self.random.unit() < share {
            (self.other_warehouse(warehouse, elsewhere), self.district())
        } else {
            (warehouse, district)
        };
        let customer = self.who();
        let amount_cents = i64::from(uniform(&mut self.random, 100, 500_000));
        PaymentCall { warehouse, district, customer_warehouse, customer_district, customer, amount_cents }
    }
}

impl Source for Clients {
    fn load(&mut self) -> Option<ProcedureId> {
        self.made = None;
        self.loader.load()
    }

    fn next(&mut self) -> Made {
        let lines = match self.made.take() {
            Some(Transaction::NewOrder(call)) => call.lines,
            _ => Vec::new(),
        };
        let kind = self.kind();
        let (procedure, made) = match kind {
            Kind::NewOrder => (NEW_ORDER, Transaction::NewOrder(self.new_order(lines))),
            Kind::Payment => (PAYMENT, Transaction::Payment(self.payment())),
            Kind::OrderStatus => {
                let (warehouse, district, customer) = (self.warehouse(), self.district(), self.who());
                let call = OrderStatusCall { warehouse, district, customer };
                (ORDER_STATUS, Transaction::OrderStatus(call))
            }
            Kind::Delivery => {
                let warehouse = self.warehouse();
                let carrier = uniform(&mut self.random, 1, u32::from(MAX_CARRIER)) as u8;
                let districts = self.parameters.scale.districts;
                (DELIVERY, Transaction::Delivery(DeliveryCall { warehouse, districts, carrier }))
            }
            Kind::StockLevel => {
                let (warehouse, district) = (self.warehouse(), self.district());
                let threshold = uniform(&mut self.random, 10, 20) as u8;
                (STOCK_LEVEL, Transaction::StockLevel(StockLevelCall { warehouse, district, threshold }))
            }
        };
        self.made = Some(made);
        Made { procedure, kind: kind as u8 }
    }

    fn write_args(&self, args: &mut ArgsBuilder<'_>) {
        match &self.made {
            Some(made) => made.write_args(&self.prefixes, args),
            None => self.loader.write_args(&self.prefixes, args),
        }
    }

    fn answered(&mut self, kind: u8, status: OutcomeStatus, reply: &[u8]) {
        match status {
            OutcomeStatus::Committed => {}
            // An engine may restart a transaction in vain; any other abort has one reason only.
            OutcomeStatus::Aborted(abort)
                if !matches!(abort, Abort::Restart | Abort::Conflict | Abort::Cascade) =>
            {
                let is_expected = (kind, abort) == (Kind::NewOrder as u8, Abort::Logic)
                    && Datum::first(reply) == Datum::Error(new_order::UNUSED_ITEM.as_bytes());
                self.summary.odd += u64::from(!is_expected);
                return;
            }
            _ => return,
        }
        let understood = match Kind::ALL.get(usize::from(kind)) {
            Some(Kind::NewOrder) => {
                new_order::read_reply(reply).map(|lines| self.summary.lines += u64::from(lines))
            }
            Some(Kind::Payment) => {
                payment::read_reply(reply).map(|cents| self.summary.paid_cents += cents.unsigned_abs())
            }
            Some(Kind::Delivery) => {
                delivery::read_reply(reply).map(|delivered| self.summary.delivered += delivered)
            }
            Some(Kind::OrderStatus) => super::order_status::is_reply(reply).then_some(()),
            Some(Kind::StockLevel) => super::stock_level::is_reply(reply).then_some(()),
            None => None,
        };
        self.summary.odd += u64::from(understood.is_none());
    }

    fn summary(&mut self) -> Vec<u8> {
        self.summary.encoded()
    }
}

impl Transaction {
    /// Writes the arguments of the call. A warehouse without a prefix is left out, which the plan refuses.
    pub(super) fn write_args(&self, prefixes: &[Prefix], args: &mut ArgsBuilder<'_>) {
        let mut push = |warehouse: u32, row: Row<'_>| {
            if let Some(prefix) = prefixes.get((warehouse as usize).wrapping_sub(1)) {
                args.push(&prefix.key(row));
            }
        };
        match self {
            Transaction::NewOrder(call) => {
                push(call.warehouse, Row::Warehouse);
                push(call.warehouse, Row::Customer(call.district, call.customer));
                call.lines.iter().for_each(|line| push(call.warehouse, Row::Item(line.item)));
                call.lines.iter().for_each(|line| push(line.supply_warehouse, Row::Stock(line.item)));
                push(call.warehouse, Row::District(call.district));
                let mut packed = [0; 1 + new_order::MAX_LINES];
                packed[0] = call.district;
                packed[1..].iter_mut().zip(&call.lines).for_each(|(byte, line)| *byte = line.quantity);
                args.push(&packed[..packed.len().min(1 + call.lines.len())]);
            }
            Transaction::Payment(call) => {
                push(call.warehouse, Row::Warehouse);
                push(call.warehouse, Row::District(call.district));
                push(call.customer_warehouse, call.customer.row(call.customer_district));
                args.push(&call.amount_cents.to_le_bytes());
            }
            Transaction::OrderStatus(call) => {
                push(call.warehouse, call.customer.row(call.district));
                push(call.warehouse, Row::District(call.district));
            }
            Transaction::Delivery(call) => {
                (1..=call.districts).for_each(|district| push(call.warehouse, Row::District(district)));
                args.push(&[call.carrier]);
            }
            Transaction::StockLevel(call) => {
                push(call.warehouse, Row::District(call.district));
                args.push(&[call.threshold]);
            }
        }
    }
}
