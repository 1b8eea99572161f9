"""Message queues on Kafka, with acks per message and redelivery of unacked messages."""

from transporter.queue.consumer import QueueConsumer
from transporter.queue.message import QueueMessage
from transporter.queue.metrics import ConsumerMetrics, TrackerMetrics
from transporter.queue.ordered_sender import Outgoing, Sent
from transporter.queue.producer import QueueProducer
from transporter.queue.settings import QueueSettings, settings_of
from transporter.queue.tracker import Tracker

__all__ = [
    "ConsumerMetrics",
    "Outgoing",
    "QueueConsumer",
    "QueueMessage",
    "QueueProducer",
    "QueueSettings",
    "Sent",
    "Tracker",
    "TrackerMetrics",
    "settings_of",
]
