import stratagem
import tensorflow as tf


def build_model():
    return tf.keras.Sequential([
        tf.keras.Input((32,)),
        tf.keras.layers.Dense(64, activation='relu'),
        tf.keras.layers.Dense(10, activation='softmax')])


def build_dataset():
    x = tf.random.stateless_normal((1000, 32), seed=(1, 2))
    y = tf.cast(tf.argmax(x[:, :10], axis=1), tf.int32)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(100)


strategy = stratagem.MirroredStrategy()
print(f'设备数量: {strategy.num_replicas_in_sync}')

with strategy.scope():
    model = build_model()
    optimizer = tf.keras.optimizers.Adam()
    train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name='train_accuracy')

train_dataset = build_dataset()

model.compile(optimizer=optimizer,
              loss='sparse_categorical_crossentropy',
              metrics=[train_accuracy])

model.fit(train_dataset, epochs=3)
