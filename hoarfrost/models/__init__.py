"""The papers' networks, and the others that the benchmarks run. All of them train privately as they stand.

None has BatchNorm, which mixes the examples of a batch; none has dropout. `Standardize` alone has buffers.
"""

from hoarfrost.models.calling import outputs_of as outputs_of
from hoarfrost.models.encoder import Encoder as Encoder
from hoarfrost.models.encoder import encoder as encoder
from hoarfrost.models.lenet import lenet as lenet
from hoarfrost.models.lenet import lenet_rgb as lenet_rgb
from hoarfrost.models.mlp import mlp as mlp
from hoarfrost.models.mnist_cnn import mnist_cnn as mnist_cnn
from hoarfrost.models.resnet import ResNet as ResNet
from hoarfrost.models.resnet import resnet18_groupnorm as resnet18_groupnorm
from hoarfrost.models.standardize import Standardize as Standardize
from hoarfrost.models.tanh_cnn import tanh_cnn as tanh_cnn
from hoarfrost.models.tempered import TemperedSigmoid as TemperedSigmoid
