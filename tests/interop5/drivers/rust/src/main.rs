//! Drives the official Rust client: commands as JSON lines on standard input, events as JSON lines on standard output.
//! The client has producers and simple consumers; it cannot change an invisible time.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Map, Value};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::watch;

type Stops = Mutex<HashMap<String, watch::Sender<bool>>>;

static STOPS: OnceLock<Stops> = OnceLock::new();

#[derive(Clone)]
struct Command(Arc<Value>);

impl Command {
    fn text(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or("")
    }

    fn number(&self, name: &str, default: i64) -> i64 {
        self.0[name].as_i64().unwrap_or(default)
    }

    fn ms(&self, name: &str, default: i64) -> Duration {
        Duration::from_millis(self.number(name, default) as u64)
    }

    /// The entry of a list that belongs to a message.
    fn nth(&self, name: &str, n: i64) -> Option<String> {
        let list = self.0[name].as_array()?;
        list.get(n as usize % list.len().max(1))?.as_str().map(str::to_string)
    }

    fn say(&self, event: &str, values: Value) {
        let mut line = Map::new();
        line.insert("id".into(), self.0["id"].clone());
        line.insert("event".into(), event.into());
        line.extend(values.as_object().cloned().unwrap_or_default());
        println!("{}", Value::Object(line));
    }

    fn failed(&self, error: &ClientError, n: Option<i64>) {
        let mut values = json!({"text": format!("{error:?}").chars().take(500).collect::<String>()});
        let code = error.context().iter().find(|(name, _)| *name == "code");
        if let Some((_, code)) = code {
            values["code"] = json!(code.parse::<i64>().ok());
        }
        if let Some(n) = n {
            values["n"] = n.into();
        }
        self.say("error", values);
    }

    fn stop(&self) -> watch::Receiver<bool> {
        let mut stops = STOPS.get_or_init(Stops::default).lock().unwrap();
        let id = self.text("id").to_string();
        stops.entry(id).or_insert_with(|| watch::channel(false).0).subscribe()
    }

    async fn pause(&self, time: Duration) {
        let mut stop = self.stop();
        let _ = tokio::time::timeout(time, stop.wait_for(|stopped| *stopped)).await;
    }

    fn client(&self) -> ClientOption {
        let mut option = ClientOption::default();
        option.set_access_url(self.text("endpoints"));
        option.set_enable_tls(self.0["tls"].as_bool().unwrap_or(false));
        option.set_timeout(self.ms("requestMs", 5000));
        // The client's deadline of a receive is the time for which it asks to wait. Proxies wait for 20 s at most.
        option.set_long_polling_timeout(self.ms("awaitMs", 25_000));
        if !self.text("accessKey").is_empty() {
            option.set_access_key(self.text("accessKey"));
            option.set_secret_key(self.text("secretKey"));
        }
        option
    }
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

fn number_of(body: &[u8]) -> i64 {
    let start = String::from_utf8_lossy(&body[..body.len().min(12)]).to_string();
    start.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(-1)
}

fn builder(c: &Command, n: i64) -> MessageBuilder {
    let mut body = format!("{n} ").into_bytes();
    body.resize(body.len().max(c.number("size", 0) as usize), b'x');
    let topic = c.text("topic");
    let mut builder = match c.text("kind") {
        "fifo" => {
            MessageBuilder::fifo_message_builder(topic, body, format!("g{}", n % c.number("groups", 1)))
        }
        "delay" => {
            // The client takes seconds.
            let at = (now_ms() + c.number("delayMs", 0) + 999) / 1000;
            MessageBuilder::delay_message_builder(topic, body, at)
        }
        "transaction" => MessageBuilder::transaction_message_builder(topic, body),
        _ => MessageBuilder::builder().set_topic(topic).set_body(body),
    };
    builder = builder.set_keys(vec![format!("k{n}")]).set_properties(HashMap::from([("n", n.to_string())]));
    if let Some(tag) = c.nth("tags", n) {
        builder = builder.set_tag(tag);
    }
    builder
}

async fn produce(c: &Command) -> Result<(), ClientError> {
    let mut option = ProducerOption::default();
    option.set_topics(vec![c.text("topic")]);
    let mut producer = if c.text("kind") == "transaction" {
        let own = c.clone();
        Producer::new_transaction_producer(
            option,
            c.client(),
            Box::new(move |_, message| {
                let n = number_of(message.body());
                own.say("check", json!({"n": n}));
                if own.nth("plan", n).unwrap_or_default().ends_with("commit") {
                    TransactionResolution::COMMIT
                } else {
                    TransactionResolution::ROLLBACK
                }
            }),
        )?
    } else {
        Producer::new(option, c.client())?
    };
    producer.start().await?;
    c.say("started", json!({}));
    let first = c.number("first", 0);
    let stop = c.stop();
    for n in first..first + c.number("count", 0) {
        if *stop.borrow() {
            break;
        }
        let began = Instant::now();
        match send(c, &producer, n).await {
            Ok(id) => c.say(
                "sent",
                json!({"n": n, "messageId": id, "ms": began.elapsed().as_millis() as u64, "at": now_ms()}),
            ),
            Err(error) => c.failed(&error, Some(n)),
        }
        tokio::time::sleep(c.ms("pauseMs", 0)).await;
    }
    c.pause(c.ms("settleMs", 0)).await;
    producer.shutdown().await
}

async fn send(c: &Command, producer: &Producer, n: i64) -> Result<String, ClientError> {
    let message = builder(c, n).build()?;
    if c.text("kind") != "transaction" {
        return Ok(producer.send(message).await?.message_id().to_string());
    }
    let transaction = producer.send_transaction_message(message).await?;
    let id = transaction.message_id().to_string();
    match c.nth("plan", n).unwrap_or_default().as_str() {
        "commit" => transaction.commit().await?,
        "rollback" => transaction.rollback().await?,
        _ => {}
    }
    Ok(id)
}

fn shown(m: &MessageView, ok: bool) -> Value {
    json!({
        "ok": ok, "n": number_of(m.body()), "size": m.body().len(), "tag": m.tag(), "keys": m.keys(),
        "properties": m.properties(), "attempt": m.delivery_attempt(), "group": m.message_group(),
        "messageId": m.message_id(), "at": now_ms(),
    })
}

async fn simple(c: &Command) -> Result<(), ClientError> {
    let mut option = SimpleConsumerOption::default();
    option.set_consumer_group(c.text("group"));
    option.set_topics(vec![c.text("topic")]);
    let mut consumer = SimpleConsumer::new(option, c.client())?;
    consumer.start().await?;
    c.say("started", json!({}));
    let kind = if c.0["sql"].as_bool().unwrap_or(false) { FilterType::Sql } else { FilterType::Tag };
    let words = if c.text("expression").is_empty() { "*" } else { c.text("expression") };
    let expression = FilterExpression::new(kind, words);
    let stop = c.stop();
    let end = Instant::now() + c.ms("timeoutMs", 0);
    let mut good = HashSet::new();
    while Instant::now() < end && (good.len() as i64) < c.number("count", 0) && !*stop.borrow() {
        let batch = c.number("batch", 16) as i32;
        let received = consumer.receive_with(c.text("topic"), &expression, batch, c.ms("invisibleMs", 15_000)).await;
        let messages = match received {
            Ok(messages) => messages,
            Err(error) => {
                c.failed(&error, None);
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        for m in messages {
            let ok = i64::from(m.delivery_attempt()) > c.number("fail", 0);
            c.say("message", shown(&m, ok));
            if ok {
                match consumer.ack(&m).await {
                    Ok(()) => {
                        good.insert(number_of(m.body()));
                    }
                    Err(error) => c.failed(&error, Some(number_of(m.body()))),
                }
            }
        }
    }
    c.pause(c.ms("settleMs", 0)).await;
    consumer.shutdown().await
}

async fn run(c: Command) {
    let result = match c.text("do") {
        "produce" => produce(&c).await,
        _ => simple(&c).await,
    };
    if let Err(error) = result {
        c.failed(&error, None);
    }
    c.say("done", json!({}));
}

#[tokio::main]
async fn main() {
    Command(Arc::new(json!({"id": ""}))).say("ready", json!({}));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let c = Command(Arc::new(serde_json::from_str(&line).expect("a command is JSON")));
        if c.text("do") == "stop" {
            let stopped = Command(Arc::new(json!({"id": c.text("of")})));
            drop(stopped.stop());
            STOPS.get().unwrap().lock().unwrap()[c.text("of")].send_replace(true);
        } else {
            drop(c.stop());
            tokio::spawn(run(c));
        }
    }
}
