//! rskafka 0.6: creates a topic, writes to each partition under a codec, reads it back.
use rskafka::client::{
    partition::{Compression, OffsetAt, UnknownTopicHandling},
    ClientBuilder,
};
use rskafka::record::Record;
use std::{collections::BTreeMap, env, time::Duration};

#[tokio::main]
async fn main() {
    let given: Vec<String> = env::args().collect();
    let (bootstrap, topic) = (given[1].clone(), given[2].clone());
    let client = ClientBuilder::new(vec![bootstrap]).build().await.unwrap();
    let controller = client.controller_client().unwrap();
    controller.create_topic(&topic, 3, 1, 10_000).await.unwrap();
    let codecs = [Compression::NoCompression, Compression::Gzip, Compression::Zstd];

    for partition in 0..3 {
        let reader = loop {
            match client.partition_client(&topic, partition, UnknownTopicHandling::Retry).await {
                Ok(made) => break made,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        let records: Vec<Record> = (0..20)
            .map(|number| Record {
                key: Some(format!("key-{number}").into_bytes()),
                value: if number == 7 { None } else { Some(format!("{partition}/{number}").into_bytes()) },
                headers: BTreeMap::from([("h".to_owned(), vec![0u8, 255])]),
                timestamp: chrono::Utc::now(),
            })
            .collect();
        let offsets = reader.produce(records, codecs[partition as usize]).await.unwrap();
        assert_eq!(offsets, (0..20).collect::<Vec<i64>>());
        assert_eq!(reader.get_offset(OffsetAt::Latest).await.unwrap(), 20);
        let (found, high) = reader.fetch_records(5, 1..1_000_000, 5_000).await.unwrap();
        assert_eq!(high, 20);
        for one in found.iter().filter(|one| one.offset >= 5) {
            assert_eq!(one.record.headers["h"], vec![0u8, 255]);
            println!("{}", String::from_utf8(one.record.value.clone().unwrap_or(b"none".to_vec())).unwrap());
        }
        reader.delete_records(3, 5_000).await.unwrap();
        assert_eq!(reader.get_offset(OffsetAt::Earliest).await.unwrap(), 3);
    }
    controller.delete_topic(&topic, 10_000).await.unwrap();
}
